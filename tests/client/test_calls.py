"""A call of the API is declared once: request, endpoint, help and clients are built from the declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import gradio as gr
import pytest
from ui.fake_client import FakeWorkbench

from workbench import Workbench
from workbench.client import Client
from workbench.client.calls import ANSWER, call, make_request
from workbench.client.requests import (
    ChangeRequest,
    ComparisonRequest,
    DrafterStateRequest,
    Generation,
    RecommendationRequest,
    Request,
)
from workbench.client.values import Images, Name, Whole
from workbench.core.errors import ParameterError
from workbench.ui import api

Times = Annotated[int, Whole(1, 9)]


def repeat(self: Any, text: Name, times: Times = 2, stopped: Callable[[], bool] = lambda: False) -> str:
    """Repeat a text.

    Args:
        text: the text
        times: number of
            repetitions
        stopped: function that is polled

    Raises:
        WorkbenchError: the number is wrong.
    """
    return ANSWER


repeat.__annotations__ = {"text": Name, "times": Times, "stopped": Callable, "return": str}


class Repeating(FakeWorkbench):
    """Implements the new call."""

    def repeat(self, text: str, times: int = 2) -> str:
        return text * times


def test_a_new_call_needs_its_declaration_and_an_implementation_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "repeat", call()(repeat), raising=False)
    with gr.Blocks() as demo:
        api.add(Repeating(), type("NewEndpoints", (api.Endpoints,), {}, protocol=Client))
    endpoint = demo.get_api_info()["named_endpoints"]["/repeat"]  # type: ignore[index]
    assert endpoint["description"].startswith("Repeat a text.")
    assert [(p["parameter_name"], p["parameter_default"]) for p in endpoint["parameters"]] == [
        ("text", None),
        ("times", 2),
    ]
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True)
    try:
        remote: Any = Workbench(url)
        assert remote.repeat("ab", times=3, stopped=bool) == "ababab"
        assert remote.repeat("ab") == "abab"
        assert remote.is_remote
        with pytest.raises(ParameterError, match="times is not a whole number from 1 to 9"):
            remote.repeat("ab", 10)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            remote.repeat("ab", number=3)
        remote.close()
    finally:
        demo.close()
    local: Any = Workbench.__new__(Workbench)
    local._backend = Repeating()
    assert local.repeat("ab", times=3) == "ababab"
    assert not local.is_remote


def test_a_request_has_the_described_parameters_that_can_be_sent() -> None:
    request = make_request(repeat)
    assert {name: field.description for name, field in request.model_fields.items()} == {
        "text": "the text",
        "times": "number of repetitions",
    }
    assert request.numbers()["times"] | {"doc": ""} == request.numbers()["times"] | {"doc": "", "ge": 1, "le": 9}

    def undescribed(self: Any, name: str) -> None:
        """Do nothing."""

    undescribed.__annotations__ = {"name": Name}
    with pytest.raises(TypeError, match="does not describe the parameters name"):
        make_request(undescribed)


def test_arguments_become_json_in_the_order_of_the_fields() -> None:
    def show(self: Any, images: Any = (), count: int = 1, names: Any = ()) -> None:
        """Show.

        Args:
            images: images
            count: number
        """

    show.__annotations__ = {"images": Images, "count": Times}
    assert make_request(show).arguments(count=3) == [None, 3]
    assert make_request(show).arguments([b"GIF8"], names=["x"]) == [["data:image/gif;base64,R0lGOA=="], 1]


@pytest.mark.parametrize(
    ("request_class", "fields"),
    [
        (
            Generation,
            "prompt method params target drafter max_new_tokens seed stop paused images pace memory keeps",
        ),
        (ChangeRequest, "run method params drafter images sees pace"),
        (DrafterStateRequest, "run action data"),
        (ComparisonRequest, "prompts lanes target max_new_tokens seed sampling stop repeats images"),
        (RecommendationRequest, "prompts seconds target drafter max_new_tokens methods"),
    ],
)
def test_fields_keep_their_positions_which_older_clients_send(request_class: type[Request], fields: str) -> None:
    known = fields.split()
    assert list(request_class.model_fields)[: len(known)] == known
