"""Request classes of the API, with which pages and servers check values. Their fields are the endpoints' arguments."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from workbench.client.calls import Request, declaration_of, make_request
from workbench.client.handle import RunHandle
from workbench.client.protocol import Client
from workbench.client.values import Action, From0, Name, Repeats, Seed, Tokens, Whole
from workbench.methods.choice import choose


class RunRequest(Request):
    """Base class of requests about one run, which name the run by its id."""

    run: Name = Field(description="id of the run")


class UpdateRequest(RunRequest):
    """API request for the rounds of a run from a given number on."""

    number: From0 = Field(0, description="number of the first round to return, from 0")


class Control(RunRequest):
    """API request to pause, resume or cancel a run, or to run a single round of it."""

    action: Action = Field(description="pause, resume, step or cancel")


class SweepRequest(Request):
    """Number fields in the form of a sweep. They apply to every cell, unless an axis of the sweep varies them."""

    limit: Annotated[int, Whole(1, 12)] = Field(2, description="number of prompts of each group")
    max_new_tokens: Tokens = Field(48, description="maximum number of new tokens per run")
    seed: Seed = Field(0, description="seed of all random numbers of the runs")
    repeats: Repeats = Field(2, description="number of runs of each prompt in each cell of the sweep")


def _choose_method(client: Client, sent: set[str], options: dict[str, Any]) -> dict[str, Any]:
    """Choose a method that can run if the request names no method (by `workbench.methods.choice`)."""
    if "method" in sent:
        return options
    reasons = {method["name"]: method["reason"] for method in client.methods(options["target"], options["drafter"])}
    return options | {"method": choose(lambda name: reasons.get(name, f"There is no method {name}."))[0]}


Models = declaration_of(Client.methods).request
Conditions = declaration_of(Client.conditions).request
Generation = make_request(Client.start, complete=_choose_method)
ComparisonRequest = make_request(Client.stream_comparison)
RecommendationRequest = make_request(Client.stream_recommendation)
ChangeRequest = make_request(RunHandle.change, base=RunRequest)
DrafterStateRequest = make_request(RunHandle.memory, base=RunRequest)
