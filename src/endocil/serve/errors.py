"""Errors of the API: an HTTP status, a code for programs and a message for people."""

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from endocil.serve.schemas import Error, ErrorResponse


class ApiError(HTTPException):  # FastAPI lets only these pass while it reads a body
    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.status, self.code, self.message = status, code, message

    def response(self) -> JSONResponse:
        body = ErrorResponse(error=Error(code=self.code, message=self.message))
        return JSONResponse(body.model_dump(), self.status, self.headers)


def not_found(thing: str) -> ApiError:
    return ApiError(404, "not-found", f"there is no such {thing}")


def too_large(message: str) -> ApiError:
    return ApiError(413, "too-large", message)


def busy(message: str) -> ApiError:
    return ApiError(429, "busy", message, {"Retry-After": "1"})
