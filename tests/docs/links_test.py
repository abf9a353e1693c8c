#!/usr/bin/env python3
"""links_test.py SOURCE: every relative link of every Markdown page leads to a file or folder, every anchor to a heading, and
docs/index.md leads to every page of docs/."""
import os, sys
from pages import headings, links, pages


def main(source):
    wrong, seen, reached = [], 0, set()
    texts = {page: open(os.path.join(source, page), encoding="utf-8").read() for page in pages(source)}
    for page, text in texts.items():
        for line, target in links(text):
            if "://" in target or target.startswith("mailto:"):
                continue
            seen += 1
            path, _, anchor = target.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(os.path.join(source, to)):
                wrong.append(f"{page}:{line}: {target}: {to} does not exist")
            elif to.startswith(".."):
                wrong.append(f"{page}:{line}: {target}: is outside the repository")
            elif anchor and to in texts:
                known = [a for _, a in headings(texts[to])]
                if anchor not in known:
                    wrong.append(f"{page}:{line}: {target}: {to} has no heading with this anchor, known are {', '.join(known)}")
            if page == "docs/index.md":
                reached.add(to)
    wrong += [f"docs/index.md: does not lead to {page}" for page in texts
              if page.startswith("docs/") and page != "docs/index.md" and page not in reached]
    print("\n".join(wrong) or f"{seen} links on {len(texts)} pages lead somewhere")
    return 1 if wrong or seen < 100 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
