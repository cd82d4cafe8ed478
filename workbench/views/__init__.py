"""Views of a trace in the browser: JavaScript (ES) modules under `js/` and their colour palette.

This package imports neither torch nor gradio.
"""

from workbench.views.modules import FIRST_MODULE, module_names, module_path, module_text
from workbench.views.palette import css_variables, palette

__all__ = ["FIRST_MODULE", "css_variables", "module_names", "module_path", "module_text", "palette"]
