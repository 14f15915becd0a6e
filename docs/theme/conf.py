"""Settings of the generator of the site. `make docs` arranges the pages first (tools/site_pages.py)."""

from oncemore._version import __version__

project = "oncemore"
release = __version__
html_title = f"oncemore {__version__}"
copyright = "the contributors of oncemore, MIT licence"  # noqa: A001 - a name of the generator's

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns: list[str] = []
# Headings have the anchors that a reader of the repository sees, so that one link works in both places.
myst_heading_anchors = 6
# A link whose target is missing is a warning, and make docs ends at a warning.
nitpicky = True

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("versions.js", {"defer": "defer"})]
# The sources of pages would be copied beside them, and no page needs them.
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_last_updated_fmt = None
html_theme_options = {
    "footer_icons": [],
    "light_css_variables": {"color-brand-primary": "#0b5c94", "color-brand-content": "#0b5c94"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f8", "color-brand-content": "#7cc4f8"},
}
# Prompts and output are not part of a command that is copied.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = False
highlight_language = "text"
pygments_style = "tango"
pygments_dark_style = "github-dark"
