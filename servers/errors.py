"""How the server refuses: to start, or to answer a request."""

from typing import Any


class StartError(Exception):
    """The server cannot start. ``str(error)`` is the whole message for a person; the process ends with code 3."""

    exit_code = 3


class RequestError(Exception):
    """A request that is refused, in OpenAI's terms."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body of the refusal."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def unknown_model(wanted: str, served: str) -> RequestError:
    """The refusal of a request for another model."""
    return RequestError(
        f"The model `{wanted}` does not exist; this server serves `{served}`",
        status=404, param="model", code="model_not_found",
    )  # fmt: skip
