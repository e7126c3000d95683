"""What a server says when it does not do what it was asked for: a status, a short code, a sentence."""

from fastapi import HTTPException

BUSY_SECONDS = 1  # after which a client may ask again


class Refusal(HTTPException):
    """Known to every client by its code; the message is for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.code = code


def too_large(message: str) -> Refusal:
    return Refusal(413, "too-large", message)


def too_slow(message: str) -> Refusal:
    return Refusal(408, "too-slow", message, {"Connection": "close"})


def busy(message: str) -> Refusal:
    return Refusal(429, "busy", message, {"Retry-After": str(BUSY_SECONDS)})


def no_answer(message: str) -> Refusal:
    return Refusal(503, "no-answer", message, {"Retry-After": "5"})


def full(message: str) -> Refusal:
    return Refusal(503, "full", message, {"Retry-After": "5"})


def unknown(thing: str) -> Refusal:
    return Refusal(404, "unknown", f"there is no such {thing}")
