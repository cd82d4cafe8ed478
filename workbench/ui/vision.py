"""Vision tab: one image, one question, one or two drafters, and a view of the image data that each drafter gets."""

from __future__ import annotations

from typing import Any

from workbench.client import Client, wire
from workbench.client.requests import Generation
from workbench.ui.hosting import add_view
from workbench.ui.saved_runs import SavedRunsView
from workbench.ui.session import Session
from workbench.views import scenes

DEFAULT_METHODS = ("specvlm", "vlm-draft", "draft-model")
"""Initial methods of the Vision tab, in order of preference: the first one that can run is chosen."""


def add(client: Client, saved_runs: SavedRunsView) -> None:
    """Add the content of the Vision tab. Call this inside the tab's `gr.Tab`."""
    session = VisionSession(client, saved_runs)
    add_view("vision", session.server_functions(), decode=session.decode, tab="vision", elem_id="wb-vision")


class VisionSession(Session):
    """Python functions that the Vision tab calls: the functions of the Live view and further functions for images."""

    def server_functions(self) -> list[Any]:
        """Return the Python functions that the Vision tab in the browser may call, by name."""
        return [*super().server_functions(), self.gallery, self.repicture, self.explain, self.explaining]

    def catalogue(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the data of the Vision tab's side panel; its list has only the targets that accept images."""
        data = super().catalogue(request)
        usable = {m["name"] for m in data["methods"] if m.get("available", True)}
        method = next((name for name in DEFAULT_METHODS if name in usable), data["chosen"]["method"])
        chosen = data["chosen"] | {"method": method, "max_new_tokens": scenes.CAPTION_TOKENS}
        return data | {"presets": [], "chosen": chosen}

    def _targets(self) -> list[dict[str, Any]]:
        return [t for t in self.client.targets() if t.get("pictures")]

    def gallery(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the bundled images with questions, the categories of words in captions, and τ by vision tokens."""
        return {
            "scenes": scenes.gallery(),
            "questions": scenes.questions(),
            "lexicon": scenes.lexicon(),
            "board": scenes.board(),
        }

    def repicture(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the image of a run from the next round on, for target and drafter or only for the drafter."""
        # without this check, an outdated page would give the target the drafter's image
        wire.check_text("sees", request.get("sees"))
        return self.change({name: request.get(name) for name in ("run", "images", "sees")})

    def _options(self, request: dict[str, Any]) -> dict[str, Any]:
        options = Generation.options(self.client, request)
        parts = [{"type": "image"}, {"type": "text", "text": options["prompt"]}]
        # Use token ids, so that text in a question that looks like a marker stays text.
        ids = self.client.chat_prompt([{"role": "user", "content": parts}], options["target"])
        return options | {"prompt": ids}

    def explain(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the attribution of a run's text to its image.

        It has attention and gradient on the image patches, and probabilities with a blanked image.
        """
        return {"attribution": self._run(request).explain()}

    def explaining(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the progress of a run's attribution to its image, from 0 to 1; None if it is unknown."""
        return {"done": self._run(request).explain_progress}
