"""Declarations of the API's calls. From each declaration the request class, the endpoint and the client are built.

The declaration of a call is the signature and the docstring of a method of a protocol class. Parameters with a type of
`workbench.client.values` are the fields of the request, in the same order. Other parameters, such as a function that is
polled, exist only in the process of the backend. Editors and type checkers read the same signature.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from workbench.client.values import MAX_SAFE_INTEGER, Json, Limits, listed_models
from workbench.core.params import ParamSpec

if TYPE_CHECKING:
    from workbench.client.protocol import Client

ANSWER: Any = None
"""Placeholder as the body of a declared call, so that type checkers see an implemented method.

The decorator replaces the body.
"""
Function = TypeVar("Function", bound=Callable[..., Any])
Complete = Callable[["Client", set[str], dict[str, Any]], dict[str, Any]]
"""Function (client, names of sent fields, options) that returns the checked options with missing values filled in."""


class Request(BaseModel):
    """Base class of the API's requests. Default values are validated, too, so that all values have the same form.

    Attributes:
        signature: signature of the Python method whose arguments the request holds.
        complete: function that fills in missing values after the check; None: no values are missing.
    """

    model_config = ConfigDict(validate_default=True, extra="ignore")
    signature: ClassVar[inspect.Signature] = inspect.Signature()
    complete: ClassVar[Complete | None] = None

    @classmethod
    def options(cls, client: Client, values: dict[str, Any]) -> dict[str, Any]:
        """Check the fields of a request, and return the keyword arguments for the client's method that answers it.

        Args:
            client: client that lists the allowed models.
            values: fields by name; a missing or None field takes its default, unknown fields are ignored.

        Raises:
            WorkbenchError: a field is invalid.
        """
        fields = {
            name: values.get(name)
            for name, field in cls.model_fields.items()
            if values.get(name) is not None or field.is_required()
        }
        request = cls.model_validate(fields, context=listed_models(client))
        return dict(request) if cls.complete is None else cls.complete(client, request.model_fields_set, dict(request))

    @classmethod
    def arguments(cls, *args: Any, **named: Any) -> list[Any]:
        """Convert the arguments of a Python method to JSON arguments of its endpoint.

        Missing arguments take their defaults.
        """
        bound = cls.signature.bind(*args, **named).arguments
        return [
            cls.json_form(name).encode(bound[name]) if name in bound else field.default
            for name, field in cls.model_fields.items()
        ]

    @classmethod
    def json_form(cls, name: str) -> Json:
        """Return the JSON type and encoder of a request field."""
        field = cls.model_fields[name]
        return next((form for form in field.metadata if isinstance(form, Json)), Json(field.annotation))

    @classmethod
    def numbers(cls) -> dict[str, dict[str, Any]]:
        """Return limits, default and first sentence of the description of each number field, by field name."""
        specs: dict[str, dict[str, Any]] = {}
        for name, field in cls.model_fields.items():
            help_text = (field.description or "").partition(". ")[0]
            for limit in field.metadata:
                if isinstance(limit, Limits):
                    most = min(limit.le, MAX_SAFE_INTEGER)
                    specs[name] = ParamSpec(name, "int", field.default, limit.ge, most, doc=help_text).to_wire()
        return specs


def make_request(
    function: Callable[..., Any], *, base: type[Request] = Request, complete: Complete | None = None
) -> type[Request]:
    """Return the request class whose fields are the parameters of a method.

    Args:
        function: method whose docstring describes the fields in its section "Args"; a field's type may describe it
            instead.
        base: request class whose fields come before those of the method.
        complete: function that fills in missing values after the check.

    Raises:
        TypeError: a field has no description.
    """
    _, descriptions = read_docstring(function)
    parameters = [*inspect.signature(function).parameters.values()][1:]  # without `self`
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if get_origin(parameter.annotation) is Annotated:
            name = parameter.name
            details: dict[str, Any] = {"description": descriptions[name]} if name in descriptions else {}
            if parameter.default is not inspect.Parameter.empty:
                details["default"] = None if parameter.default == () else parameter.default
            fields[name] = (parameter.annotation, Field(**details))
    request = create_model(function.__qualname__, __base__=base, __doc__=function.__doc__, **fields)
    if undescribed := [name for name, field in request.model_fields.items() if not field.description]:
        raise TypeError(
            f"The docstring of {function.__qualname__} does not describe the parameters {', '.join(undescribed)}."
        )
    inherited = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in base.model_fields]
    request.signature = inspect.Signature([*inherited, *parameters])
    request.complete = complete
    return request


def read_docstring(function: Any) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring before its first section, and the descriptions of the arguments by name."""
    summary, *sections = re.split(r"\n\n(?=\w+:\n)", inspect.getdoc(function) or "")
    lines = next((section for section in sections if section.startswith("Args:")), "").splitlines()[1:]
    descriptions: dict[str, str] = {}
    name = ""
    for line in lines:
        if start := re.match(r" {4}(\w+): (.*)", line):
            name, descriptions[start[1]] = start[1], start[2]
        elif line.strip():
            descriptions[name] += f" {line.strip()}"
    return summary, descriptions


@dataclasses.dataclass(frozen=True)
class Call:
    """Declaration of one call of the API.

    Attributes:
        function: method of the protocol class that declares the call.
        endpoint: name of the call's HTTP endpoint; empty: the call has no endpoint.
        key: name of the result in the endpoint's answer.
    """

    function: Callable[..., Any]
    endpoint: str
    key: str

    @property
    def name(self) -> str:
        """Return the name of the method that declares the call."""
        return self.function.__name__

    @functools.cached_property
    def request(self) -> type[Request]:
        """Return the class of the requests to the call's endpoint."""
        return make_request(self.function)

    def call_endpoint(self, send: Callable[..., dict[str, Any]], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call the endpoint with the arguments of the Python method, and return the result.

        Args:
            send: function that calls an endpoint with JSON data and returns its answer.
            args: positional arguments.
            named: named arguments.
        """
        result = send(self.endpoint, *self.request.arguments(*args, **named))[self.key]
        returns = inspect.signature(self.function).return_annotation
        if dataclasses.is_dataclass(returns):
            names = {field.name for field in dataclasses.fields(returns)}  # a newer server may have further ones
            return returns(**{name: value for name, value in result.items() if name in names})  # type: ignore[operator]
        return None if returns is None else result

    def answer(self, client: Client, options: dict[str, Any]) -> Any:
        """Call the declared method of a client with checked options, and return the result as JSON data."""
        result = call_member(client, self.name, (), options)
        if dataclasses.is_dataclass(result) and not isinstance(result, type):
            return dataclasses.asdict(result)
        return result


def call(endpoint: str = "", key: str = "") -> Callable[[Function], Function]:
    """Return a decorator that declares a method as a call of the API with an HTTP endpoint.

    Args:
        endpoint: name of the endpoint; empty: the method's name.
        key: name of the result in the endpoint's answer; empty: the endpoint's name.
    """

    def declare(function: Function) -> Function:
        name = endpoint or function.__name__
        return _declared(function, name, key or name)

    return declare


def local_call(function: Function) -> Function:
    """Declare an API call without an HTTP endpoint of the same arguments. Remote clients implement it themselves."""
    return _declared(function, "", "")


def _declared(function: Any, endpoint: str, key: str) -> Any:
    declaration = Call(function, endpoint, key)

    @functools.wraps(function)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return self._dispatch(declaration, args, named)

    method.declaration = declaration  # type: ignore[attr-defined]
    return method


def declaration_of(function: Callable[..., Any]) -> Call:
    """Return the API declaration of a method of a protocol class."""
    return getattr(function, "declaration")  # noqa: B009  the decorators set it


def calls_of(protocol: type) -> Iterator[Call]:
    """Yield the API calls that a protocol class declares, beginning with the calls of its base classes."""
    for kind in reversed(protocol.__mro__):
        for member in vars(kind).values():
            function: Any = member.fget if isinstance(member, property) else member
            if hasattr(function, "declaration"):
                yield declaration_of(function)


def call_member(client: Any, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a method of a client, or return the value of a client's property."""
    member = getattr(client, name)
    return member(*args, **named) if callable(member) else member
