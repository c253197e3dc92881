#!/usr/bin/env python3
"""The form of a commit message: `area: what changes`, at most 72 columns, and a body that says why.

usage: commit_message.py FILE     as git's commit-msg hook calls it; prints what is wrong, exit 1
"""
import re
import sys

SUBJECT_COLUMNS, BODY_COLUMNS = 72, 100
AREA = re.compile(r"[a-z][\w/.-]*(, [a-z][\w/.-]*)*: \S")
# What git itself writes, and what a later rebase folds away.
AUTOMATIC = re.compile(r"(Merge\b|Revert \"|fixup! |squash! |amend! )")


def problems(text):
    """Lines that say what is wrong with the message `text`, comments of git's template aside."""
    lines = text.split("# ------------------------ >8 ------------------------")[0].splitlines()
    lines = [line.rstrip() for line in lines if not line.startswith("#")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines or not lines[0]:
        return ["no subject: the first line is 'area: what changes'"]
    found = []
    subject = lines[0]
    if len(subject) > SUBJECT_COLUMNS:
        found.append(f"the subject has {len(subject)} columns, at most {SUBJECT_COLUMNS}")
    if AUTOMATIC.match(subject):
        return found
    if not AREA.match(subject):
        found.append(f"'{subject}' does not begin with an area, such as 'compiler/cache: '")
    if subject.endswith("."):
        found.append("the subject ends with a full stop")
    if len(lines) == 1:
        return [*found, "no body: say why, and how it was checked"]
    if lines[1]:
        found.append("no empty line after the subject")
    found += [f"line {number} has {len(line)} columns, at most {BODY_COLUMNS}"
              for number, line in enumerate(lines[1:], 2) if len(line) > BODY_COLUMNS and " " in line.strip()]
    return found


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with open(sys.argv[1], encoding="utf-8") as file:
        found = problems(file.read())
    for line in found:
        print(f"commit message: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
