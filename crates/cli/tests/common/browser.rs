//! What a browser makes of a page: its text, and its timeline sampled as letters, so that golden
//! files of both can be read and do not depend on fonts.

use instep_madehost::skip;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A page as shown.
pub(crate) struct Rendered {
    /// The text of its body, a line a cell, without what is hidden.
    pub(crate) text: String,
    /// Rows of its timeline, 76 samples each: `r` runs, `w` waits, `k` waking, `.` neither. Empty
    /// without a timeline.
    pub(crate) timeline: String,
    /// Its heat maps: every row of the tables of stacking and of culprits, each cell with the strength
    /// of its colour in per cent, if it has one. Empty without such a table.
    pub(crate) heat: String,
    /// Its drawings, a line a shape, in whole pixels. Empty without one.
    pub(crate) shapes: String,
}

/// Samples the canvas after it was drawn (page.js: rows of 16 pixels, 3 apart, names on the left).
const SAMPLER: &str = r#"<pre id="sampled"></pre><pre id="heat"></pre><pre id="shapes"></pre><script>{
const canvas = document.getElementById("time"), rows = [];
if (canvas) {
  const style = getComputedStyle(document.documentElement), draw = canvas.getContext("2d");
  const colour = name => parseInt(style.getPropertyValue(name).trim().slice(1), 16);
  const known = { "--run": "r", "--wait": "w", "--wake": "k" };
  for (let y = 11; y < canvas.height - 24; y += 19) {
    let row = "";
    for (let n = 0; n < 76; n++) {
      const x = Math.floor(120 + (n + .5) * (canvas.width - 120) / 76);
      const [r, g, b, a] = draw.getImageData(x, y, 1, 1).data, at = r << 16 | g << 8 | b;
      const found = Object.keys(known).find(name => a > 200 && colour(name) === at);
      row += found ? known[found] : ".";
    }
    rows.push(row);
  }
}
document.getElementById("sampled").textContent = rows.join("\n");
const heat = [];
for (const id of ["stacking", "culprits"]) for (const row of document.querySelectorAll(`#${id} tr`))
  heat.push(id + ": " + [...row.cells].map(cell => {
    const colour = getComputedStyle(cell).backgroundColor.match(/^rgba\(209, 73, 91, ([0-9.]+)\)$/);
    return cell.textContent + (colour ? ` [${Math.round(100 * colour[1])}]` : "");
  }).join(" | "));
document.getElementById("heat").textContent = heat.join("\n");
const shapes = [];
for (const shape of document.querySelectorAll("svg *:not(text)"))
  shapes.push([shape.closest("[id]").id + ":", shape.tagName, ...[...shape.attributes].map(a =>
    `${a.name}=` + a.value.replace(/\d+\.\d+/g, n => /opacity|stroke-width/.test(a.name) ? n : Math.round(n)))].join(" "));
document.getElementById("shapes").textContent = shapes.join("\n");
document.querySelectorAll("[hidden]").forEach(part => part.remove());
}</script></body>"#;

/// What Chromium prints with these arguments more; notes that there is none, and gives nothing then. Its profile is in `dir`.
pub(crate) fn run_chromium(dir: &Path, more: impl FnOnce(&mut Command)) -> Option<String> {
    let mut command = Command::new("timeout");
    command.args(["60", "chromium", "--headless", "--no-sandbox", "--disable-gpu"]);
    command.arg(format!("--user-data-dir={}", dir.join("profile").display()));
    more(&mut command);
    let output = command.stdin(Stdio::null()).output().expect("timeout(1)");
    // What timeout(1) says of a program that it does not find.
    if output.status.code() == Some(127) {
        skip::note("no chromium here: what the page shows is not looked at");
        return None;
    }
    let (shown, errors) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "chromium is here and fails: {}: {errors}", output.status);
    Some(String::from_utf8_lossy(shown).into_owned())
}

/// Shows the page in a browser; notes that there is none, and gives nothing then.
pub(crate) fn rendered(page: &Path) -> Option<Rendered> {
    let dir = tempfile::tempdir().unwrap();
    let sampled = dir.path().join("page.html");
    fs::write(&sampled, fs::read_to_string(page).unwrap().replace("</body>", SAMPLER)).unwrap();
    let dom = run_chromium(dir.path(), |command| {
        command.args(["--dump-dom", "--virtual-time-budget=3000", "--window-size=1280,900"]);
        command.arg(format!("file://{}", sampled.display()));
    })?;
    let body = dom.split_once("<body").and_then(|(_, body)| body.split_once("<script")).unwrap().0;
    let mut text = String::new();
    for part in body.split('<').skip(1) {
        let said = part.split_once('>').map_or("", |(_, said)| said).trim();
        if !said.is_empty() {
            text.push_str(said);
            text.push('\n');
        }
    }
    let sampled = |id: &str| {
        let (_, from) = dom.split_once(&format!("<pre id=\"{id}\">")).unwrap();
        let lines = from.split_once("</pre>").unwrap().0;
        if lines.is_empty() { String::new() } else { format!("{lines}\n") }
    };
    let (timeline, heat, shapes) = (sampled("sampled"), sampled("heat"), sampled("shapes"));
    Some(Rendered { text, timeline, heat, shapes })
}
