"""The site of these pages: ``sphinx-build -W -n docs build/docs``, then build/docs/index.html.

The pages are Markdown that GitHub shows as it is. What GitHub does with a link to a file of the
repository, the site does with a page of its own for each such file: it works without a network.
"""

import posixpath
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import toynn

ROOT = Path(__file__).parent.parent

project = "toynn"
version = release = toynn.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "sphinx.ext.viewcode"]
exclude_patterns = ["requirements.txt", "notebooks/*.ipynb", "notebooks/shown"]
nb_execution_mode = "cache"  # -D nb_execution_mode=off: notebooks are shown and not run
nb_execution_raise_on_error = nb_execution_show_tb = True
nb_execution_timeout = 120  # seconds for each
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_title = f"toynn {version}"
html_show_copyright = False
myst_heading_anchors = 3
myst_links_external_new_tab = True
add_module_names = False
default_role = "code"
numpydoc_show_class_members = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"

# Types of other libraries have their pages elsewhere; of toynn, those that API.md does not list.
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|collections|pathlib|os|typing|array)\b.*"),
    ("py:.*", r"toynn(\.\w+)+\.[A-Z]\w*"),
    ("py:class", "Backend"),  # of toynn.backends.protocol, which toynn.backends imports for editors
]

KERNELS = runpy.run_path(str(ROOT / "docs" / "kernel_pages.py"))

#: Where pages are made from files that are not in docs.
MADE = "_pages"
LINK = re.compile(r"(\]\()(?!https?:|#|/)([^)#\s]+)")
LANGUAGES = {".py": "python", ".pyx": "cython", ".pxd": "cython", ".h": "c", ".c": "c"}
LANGUAGES |= {".m": "objective-c", ".metal": "c++"}


def page_of(path: str) -> str:
    """Return where the site has a file of the repository, beside docs' own pages and pictures."""
    if path.startswith("docs/") and path.endswith((".md", ".png", ".svg")):
        return path.removeprefix("docs/").replace("notebooks/shown/", "notebooks/")  # it runs them
    return f"{MADE}/{path}" if path.endswith(".md") else f"{MADE}/{path}.md"


def origin(docname: str) -> str:
    """Return the file of the repository that a page is made from."""
    made = docname.removeprefix(f"{MADE}/")
    return f"{made}.md" if made != docname else f"docs/{docname}.md"


def targets(path: str, text: str) -> set[str]:
    """Return the files and folders of the repository to which a page links."""
    folder = posixpath.dirname(path)
    return {posixpath.normpath(posixpath.join(folder, link)) for _, link in LINK.findall(text)}


def shown(path: str) -> str:
    """Return the page of a file or folder that is no page itself."""
    file = ROOT / path
    if file.is_dir():
        listed = "\n".join(f"- `{f.relative_to(ROOT)}`" for f in sorted(file.glob("*.*")))
        return f"---\norphan: true\n---\n# {path}/\n\n{listed}\n"
    language = LANGUAGES.get(file.suffix, "text")
    up = posixpath.relpath(".", posixpath.dirname(f"docs/{MADE}/{path}"))
    include = f"```{{literalinclude}} {up}/{path}\n:language: {language}\n:linenos:\n```"
    return f"---\norphan: true\n---\n# {path}\n\n{include}\n"


def make_pages(app: Sphinx) -> None:
    """Write a page for each file outside of docs to which a page of the site links."""
    made = Path(app.srcdir) / MADE
    shutil.rmtree(made, ignore_errors=True)
    folders = ("docs", "docs/notebooks", "docs/kernels")
    pages = [page for folder in folders for page in ROOT.glob(f"{folder}/*.md")]
    todo = sorted(str(page.relative_to(ROOT)) for page in pages)
    seen = set(todo)
    while todo:
        path = todo.pop()
        file = ROOT / path
        text = file.read_text() if path.endswith(".md") else ""
        if not path.startswith("docs/"):
            page = Path(app.srcdir) / page_of(path)
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text or shown(path))
        found = targets(path, text) - seen
        seen |= found
        todo += [link for link in sorted(found) if not link.startswith("docs/")]


def redirected(text: str, path: str, docname: str) -> str:
    """Return the text of a file of the repository with links for a page of the site."""
    here = posixpath.dirname(docname)

    def there(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        return link[1] + posixpath.relpath(page_of(file), here)

    return LINK.sub(there, text)


def redirect(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn a page's links to files into links to their pages; add the code to a kernel's page."""
    path = origin(docname)
    if docname.startswith("kernels/") and docname != "kernels/index":
        source[0] += "\n" + KERNELS["code_of"](posixpath.basename(docname))
    if path.endswith(".md") and (ROOT / path).exists():
        source[0] = redirected(source[0], path, docname)


def as_rst(app: Sphinx, what: str, name: str, obj: object, options: object, doc: list[str]) -> None:
    """Make what docstrings show by indenting it, such as formulas and examples, literal blocks.

    A section underlined by "---" begins what numpydoc reads: it stays as it is.
    """
    text: list[str] = []
    for k, line in enumerate(doc):
        if re.fullmatch(r"-{4,}", line):
            text += doc[k:]
            break
        shown, before = line.startswith("    "), next((t for t in reversed(text) if t), "")
        if shown and not before.startswith("    "):
            text += ["::", ""]
        text.append(line if shown else line.replace("|", r"\|"))
    doc[:] = text


#: The contents of each page that the list of all pages is made of.
TITLES: dict[str, nodes.Node] = {}


def title_alone(toc: nodes.Node) -> nodes.Node:
    """Return a page's contents without its sections and objects, if they list no other pages."""
    if next(toc.findall(addnodes.toctree), None) is not None:
        return toc
    alone = toc.copy()
    for item in toc.children:
        alone += item.copy()
        alone[-1] += item[0].deepcopy()
    return alone


def navigate(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the theme's list of all pages their titles alone: it shows no more.

    Sphinx copies it for each page. With the objects of API.md this took most of the time.
    """
    toctree, whole = context["toctree"], app.env.tocs
    if not TITLES:
        TITLES.update((name, title_alone(toc)) for name, toc in whole.items())

    def of_titles(**options: Any) -> str:
        app.env.tocs = TITLES
        try:
            return toctree(**options)
        finally:
            app.env.tocs = whole

    context["toctree"] = of_titles


def setup(app: Sphinx) -> None:
    """Connect these to Sphinx."""
    app.connect("autodoc-process-docstring", as_rst, priority=100)  # before numpydoc
    app.connect("builder-inited", make_pages)
    app.connect("source-read", redirect)
    app.connect("html-page-context", navigate, priority=100)  # before the theme
