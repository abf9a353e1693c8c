"""Markdown pages as the tests of the documentation read them."""
import glob, os, re

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```[ ]*$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)


def pages(source):
    """All Markdown pages of the repository, relative to it."""
    found = []
    for folder, folders, files in os.walk(source):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in ("build", "shared", "demo-out"))
        found += [os.path.relpath(os.path.join(folder, f), source) for f in sorted(files) if f.endswith(".md")]
    return found


def without_code(text):
    """The text with blocks and spans of code blanked, in as many lines."""
    text = FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    return re.sub(r"`[^`\n]*`", lambda m: " " * len(m[0]), text)


def headings(text):
    """(name as in the text, anchor as GitHub makes it) of every heading."""
    found, seen = [], {}
    for line in FENCE.sub("", text).splitlines():
        match = re.match(r"#{1,6} +(.*?) *#*$", line)
        if not match:
            continue
        name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).replace("`", "").replace("*", "")
        anchor = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
        number = seen.get(anchor, 0)
        seen[anchor] = number + 1
        found.append((name, f"{anchor}-{number}" if number else anchor))
    return found


def links(text):
    """(line number, target) of every link and picture outside code."""
    for number, line in enumerate(without_code(text).splitlines(), 1):
        for match in re.finditer(r"\]\(([^()\s]+)\)", line):
            yield number, match[1]


class Block:
    """A fenced block: its language, lines, line number, and the test's comments since the block before."""

    def __init__(self, language, text, line, comments):
        self.language, self.text, self.line, self.comments = language, text, line, comments

    def is_commands(self):
        """Commands have no language or sh; what they print, and pictures, are text."""
        return self.language in ("", "sh")


def blocks(text):
    """The blocks of a page in order; the comments are the test's, `<!-- test: ... -->`."""
    found, end = [], 0
    for match in FENCE.finditer(text):
        said = [c[1].strip()[5:].strip() for c in COMMENT.finditer(text, end, match.start())
                if c[1].strip().startswith("test:")]
        found.append(Block(match[1].strip(), match[2], text.count("\n", 0, match.start()) + 1, said))
        end = match.end()
    return found
