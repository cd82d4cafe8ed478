"""Views of a trace: ES modules under `js/` with one palette and one vocabulary. Imports neither torch nor gradio."""

from workbench.views.modules import FIRST_MODULE, module_names, module_path, module_text
from workbench.views.palette import css_variables, palette

__all__ = ["FIRST_MODULE", "css_variables", "module_names", "module_path", "module_text", "palette"]
