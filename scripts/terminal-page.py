#!/usr/bin/env python3
"""Makes a page of a terminal's screen: `tmux capture-pane -e -p -N` on standard input, HTML on standard output.

Knows what tmux writes: colours (8, 16, 256, RGB), bold, reversed. The first 16 colours are xterm's."""
import html
import re
import sys

NAMED = """000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5
7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff""".split()
FOREGROUND, BACKGROUND = "#d8dce2", "#15181c"


def indexed(number):
    """A colour of the 256: 16 named, a cube of 6 levels, 24 greys."""
    if number < 16:
        return "#" + NAMED[number]
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    levels = [0, 95, 135, 175, 215, 255]
    cube = number - 16
    return "#" + "".join(f"{levels[cube // part % 6]:02x}" for part in (36, 6, 1))


def colour(numbers):
    """The colour after a 38 or 48, taken from the list."""
    if numbers.pop(0) == 5:
        return indexed(numbers.pop(0))
    return "#" + "".join(f"{numbers.pop(0):02x}" for _ in range(3))


def change(look, numbers):
    """Applies one sequence to the current look: foreground, background, bold, reversed."""
    numbers = numbers or [0]
    while numbers:
        number = numbers.pop(0)
        if number == 0:
            look.update(fg=None, bg=None, bold=False, reverse=False)
        elif number in (1, 22):
            look["bold"] = number == 1
        elif number in (7, 27):
            look["reverse"] = number == 7
        elif number in (38, 48):
            look["fg" if number == 38 else "bg"] = colour(numbers)
        elif number in (39, 49):
            look["fg" if number == 39 else "bg"] = None
        elif number // 10 in (3, 9):
            look["fg"] = indexed(number % 10 + (8 if number >= 90 else 0))
        elif number // 10 in (4, 10):
            look["bg"] = indexed(number % 10 + (8 if number >= 100 else 0))


def style(look):
    fg, bg = look["fg"] or FOREGROUND, look["bg"] or BACKGROUND
    if look["reverse"]:
        fg, bg = bg, fg
    return f"color:{fg};background:{bg}" + (";font-weight:bold" if look["bold"] else "")


def main():
    look = dict(fg=None, bg=None, bold=False, reverse=False)
    print(f"""<!DOCTYPE html><meta charset="utf-8"><style>
body {{ margin: 0; background: {BACKGROUND}; }}
pre {{ margin: 0; padding: 12px; width: max-content; font: 16px/19px "DejaVu Sans Mono", monospace; }}
span {{ display: inline-block; height: 19px; }}</style><pre>""", end="")
    for line in sys.stdin.read().rstrip("\n").split("\n"):
        for at, part in enumerate(re.split(r"\x1b\[([0-9;]*)m", line)):
            if at % 2:
                change(look, [int(number or 0) for number in part.split(";")])
            elif part:
                print(f'<span style="{style(look)}">{html.escape(part)}</span>', end="")
        print()
    print("</pre>")


main()
