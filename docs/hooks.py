"""Makes pages of the site from the README and other files of the root, and from the examples."""

import sys
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import examples

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
}


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=moved((ROOT / source).read_text())))
    for place, content in examples.files().items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The folder of examples, which has a page on the site."""
    return markdown.replace("](gallery)", "](gallery/index.md)")


@event_priority(-100)  # when the index is there
def on_post_build(config: Any) -> None:
    """The index of the search as a script, for pages that are opened from a folder."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text()
    (folder / "search_index.js").write_text(f"var __index = {index}")


def moved(text: str) -> str:
    """Links of a file in the root as they are from inside of docs/."""
    for source, page in PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text.replace("](docs/", "](")
