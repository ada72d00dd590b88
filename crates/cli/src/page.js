// What pages with a timeline share: times, cells, and the timeline itself.
"use strict";
const $ = id => document.getElementById(id);
function time(ns) {
  const [v, u] = ns < 1e3 ? [ns, "ns"] : ns < 1e6 ? [ns / 1e3, "us"]
    : ns < 1e9 ? [ns / 1e6, "ms"] : [ns / 1e9, "s"];
  return v.toFixed(u === "ns" || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2) + u;
}
// The same without zeros at the end, for axes and sentences.
const brief = ns => ns === 0 ? "0" : time(ns).replace(/(\.\d*?)0+([a-z])/, "$1$2").replace(/\.([a-z])/, "$1");
// Round values between two, at most so many.
function ticks(from, to, most) {
  const least = Math.max((to - from) / most, 1e-12), unit = 10 ** Math.floor(Math.log10(least));
  const step = unit * [1, 2, 5, 10].find(m => m * unit >= least * .999), out = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-9; n++) out.push(n * step);
  return out;
}
function add(parent, tag, text) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  parent.append(e);
  return e;
}
function heat(cell, part) {
  if (part > 0) cell.style.background = `rgba(209,73,91,${0.12 + 0.75 * Math.min(1, part)})`;
}
// The table "culprits": the groups that matter most as columns.
function culprits(report) {
  const totals = new Map();
  for (const vm of report.vms) for (const c of vm.culprits)
    totals.set(c.name, (totals.get(c.name) || 0) + c.ns);
  const names = [...totals].sort((a, b) => b[1] - a[1]).slice(0, 12).map(e => e[0]);
  let row = add($("culprits"), "tr");
  add(row, "th", "waited \\ ran");
  names.forEach(n => add(row, "th", n));
  for (const vm of report.vms) {
    row = add($("culprits"), "tr");
    add(row, "td", vm.name);
    const all = vm.culprits.reduce((s, c) => s + c.ns, 0) || 1;
    for (const n of names) {
      const c = vm.culprits.find(c => c.name === n);
      const cell = add(row, "td", c ? time(c.ns) : "");
      if (c) heat(cell, c.ns / all);
    }
  }
}
// Draws rows of spans [start, length, state, CPU] (microseconds) up to `end` into the canvas "time".
function timeline(rows, end, cut_us) {
  const canvas = $("time"), tip = $("tip"), H = 16, LEFT = 120;
  end = Math.max(1, end);
  let from = 0, to = end;
  if (cut_us !== null)
    $("cut").textContent = "The timeline ends after " + time(cut_us * 1000) +
      "; the numbers are of all the time.";
  const colour = () => ["--run", "--wait", "--wake"].map(n =>
    getComputedStyle(document.documentElement).getPropertyValue(n).trim());
  function firstAt(spans, t) {
    let a = 0, b = spans.length;
    while (a < b) { const m = (a + b) >> 1; if (spans[m][0] + spans[m][1] < t) a = m + 1; else b = m; }
    return a;
  }
  // The parts of each column's time that a row was in the states.
  function columns(spans, count) {
    const parts = Array.from({ length: count }, () => [0, 0, 0]), width = (to - from) / count;
    for (let i = firstAt(spans, from); i < spans.length && spans[i][0] < to; i++) {
      const [start, length, state] = spans[i];
      const a = Math.max(0, (start - from) / width), b = Math.min(count, (start + length - from) / width);
      for (let n = Math.floor(a); n < b; n++) parts[n][state] += Math.min(b, n + 1) - Math.max(a, n);
    }
    return parts;
  }
  // Bars over each other, the least of them a pixel high; columns that are alike are one.
  function bars(c, parts, y, width, colours) {
    for (let n = 0, next; n < parts.length; n = next) {
      next = n + 1;
      while (next < parts.length && parts[next].every((part, state) => part === parts[n][state])) next++;
      let bottom = y + H;
      parts[n].forEach((part, state) => {
        if (part <= 0) return;
        const high = Math.max(1, Math.min(1, part) * H), top = Math.max(y, bottom - high);
        c.fillStyle = colours[state]; c.fillRect(LEFT + n * width, top, (next - n) * width, high);
        bottom = top;
      });
    }
  }
  function axis(c, w, h, x, colour) {
    c.textBaseline = "middle"; c.fillStyle = colour;
    for (const t of ticks(from, to, 9)) {
      c.textAlign = x(t) < LEFT + 20 ? "left" : x(t) > w - 25 ? "right" : "center";
      c.fillRect(Math.min(w - 1, x(t)), h - 22, 1, 4);
      c.fillText(brief(t * 1000), x(t), h - 9);
    }
  }
  function draw() {
    const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = rows.length * (H + 3) + 24;
    canvas.width = w * ratio; canvas.height = h * ratio; canvas.style.height = h + "px";
    const c = canvas.getContext("2d"), colours = colour(), text = getComputedStyle(document.body).color;
    c.scale(ratio, ratio); c.clearRect(0, 0, w, h);
    c.font = "12px system-ui"; c.textBaseline = "middle"; c.textAlign = "left";
    const count = Math.max(1, Math.round((w - LEFT) * ratio));
    rows.forEach((r, n) => {
      const y = n * (H + 3) + 3;
      c.fillStyle = text;
      c.fillText(r.name.length > 17 ? r.name.slice(0, 8) + "~" + r.name.slice(-8) : r.name, 4, y + H / 2);
      bars(c, columns(r.spans, count), y, (w - LEFT) / count, colours);
    });
    axis(c, w, h, t => LEFT + (t - from) / (to - from) * (w - LEFT), text);
  }
  function zoom(at, factor) {
    const w = canvas.clientWidth, t = from + (at - LEFT) / (w - LEFT) * (to - from);
    const a = t - (t - from) * factor, b = t + (to - t) * factor;
    if (b - a < 10) return;
    from = Math.max(0, a); to = Math.min(end, b); draw();
  }
  canvas.addEventListener("wheel", e => { e.preventDefault();
    zoom(e.clientX - canvas.getBoundingClientRect().left, e.deltaY > 0 ? 1.25 : 0.8); }, { passive: false });
  canvas.addEventListener("dblclick", () => { from = 0; to = end; draw(); });
  let drag = null;
  canvas.addEventListener("pointerdown", e => { drag = { x: e.clientX, from, to };
    canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => drag = null);
  canvas.addEventListener("pointerleave", () => tip.style.display = "none");
  canvas.addEventListener("pointermove", e => {
    const box = canvas.getBoundingClientRect(), w = box.width;
    if (drag) {
      const shift = (drag.x - e.clientX) / (w - LEFT) * (drag.to - drag.from);
      const d = Math.max(-drag.from, Math.min(end - drag.to, shift));
      from = drag.from + d; to = drag.to + d; draw(); return;
    }
    const t = from + (e.clientX - box.left - LEFT) / (w - LEFT) * (to - from);
    const r = rows[Math.floor((e.clientY - box.top - 3) / (H + 3))];
    const s = r && r.spans[firstAt(r.spans, t)];
    if (!s || s[0] > t || e.clientX - box.left < LEFT) { tip.style.display = "none"; return; }
    tip.textContent = `${r.name}: ${["runs on CPU " + s[3], "waits for CPU " + s[3], "waking"][s[2]]}` +
      `, ${time(s[1] * 1000)} at ${time(s[0] * 1000)}`;
    tip.style.display = "block";
    tip.style.left = Math.min(innerWidth - 260, e.clientX + 12) + "px";
    tip.style.top = e.clientY + 14 + "px";
  });
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}
