"""A URL as the API's owner gives it is the URL that requests go to, and its key stands where it is looked for."""

from typing import Any

import pytest

from loadtest.endpoints.catalog import dialect
from loadtest.endpoints.pattern import Pattern, RequestForm
from loadtest.endpoints.site import site
from loadtest.wire.control import Reply

AZURE = "https://x.openai.azure.com/openai"
VERSION = "?api-version=2024-10-21"


@pytest.mark.parametrize(
    ("url", "kind", "target"),
    [
        ("http://h", "chat", "/v1/chat/completions"),
        ("http://h/v1/", "chat", "/v1/chat/completions"),
        ("http://h/v1/completions", "chat", "/v1/chat/completions"),
        ("http://h/api/v1/chat/completions", "chat", "/api/v1/chat/completions"),
        ("http://h/inference/v1/completions", "completions", "/inference/v1/completions"),
        ("http://h/v1beta/openai/chat/completions", "chat", "/v1beta/openai/chat/completions"),
        ("http://h/serving-endpoints/chat/completions", "chat", "/serving-endpoints/chat/completions"),
        ("http://h/serving-endpoints/m/invocations", "chat", "/serving-endpoints/m/invocations"),
        ("http://h/embeddings", "chat", "/embeddings/v1/chat/completions"),
        ("http://h/embeddings", "embeddings", "/embeddings"),
        ("unix:/run/s.sock:/chat/completions", "chat", "/chat/completions"),
        (
            f"{AZURE}/deployments/d/chat/completions{VERSION}",
            "chat",
            f"/openai/deployments/d/chat/completions{VERSION}",
        ),
        (f"{AZURE}/deployments/d/{VERSION}", "embeddings", f"/openai/deployments/d/embeddings{VERSION}"),
        (f"{AZURE}/v1/chat/completions", "chat", "/openai/v1/chat/completions"),
        (f"{AZURE}/v1/", "embeddings", "/openai/v1/embeddings"),
        ("http://h/v1/messages", "anthropic", "/v1/messages"),
        ("http://h/api/generate", "ollama-generate", "/api/generate"),
        ("http://h/tgi/generate", "tgi", "/tgi/generate"),
        ("http://h/tgi/generate_stream", "tgi", "/tgi/generate_stream"),
    ],
)
def test_a_url_leads_to_one_path(url: str, kind: str, target: str) -> None:
    found = site(url, kind)
    path = found.path or dialect(kind).path
    assert found.origin.path(path) == target


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://h", None),
        (f"{AZURE}/v1", "api-key"),
        ("https://x.services.ai.azure.com/models/chat/completions", "api-key"),
        (f"http://gateway/openai/deployments/d{VERSION}", "api-key"),
        ("http://openai.azure.com.example", None),
    ],
)
def test_azure_takes_the_key_in_a_header_of_its_own(url: str, header: str | None) -> None:
    assert site(url, "chat").key_header == header


@pytest.mark.parametrize(
    ("url", "asked", "path", "model"),
    [
        (f"{AZURE}/deployments/my%20gpt/chat/completions{VERSION}", None, "/models", "my gpt"),
        (f"{AZURE}/deployments/d/chat/completions{VERSION}", "other", "/models", "other"),
        ("http://h/v1beta/openai/chat/completions", None, "/models", "first"),
        ("http://h", None, "/v1/models", "first"),
    ],
)
def test_the_model_is_the_deployments_and_the_list_lies_beside_the_api(
    url: str, asked: str | None, path: str, model: str
) -> None:
    paths: list[str] = []

    def get(asked_path: str) -> Reply:
        paths.append(asked_path)
        listed: Any = {"data": [{"id": "first"}]}
        return Reply(200, "", listed)

    assert site(url, "chat").discover(get, asked).model == model
    assert paths == [path]


@pytest.mark.parametrize(
    ("url", "prefix", "model"),
    [
        ("http://h", "", None),
        ("http://h/v2", "", None),
        ("http://h/v2/models/", "", None),
        ("http://h/v2/models/my%20m", "", "my m"),
        ("http://h/triton/v2/models/m/generate", "/triton", "m"),
        ("http://h/v2/models/m/generate_stream", "", "m"),
        ("http://h/v2/models/generate/versions/2/generate_stream", "", "generate/versions/2"),
    ],
)
def test_a_url_of_the_open_inference_protocol_names_the_model(url: str, prefix: str, model: str | None) -> None:
    found = site(url, "triton")
    assert (found.origin.prefix, found.model, found.path) == (prefix, model, None)
    assert site(url, "chat").model is None


@pytest.mark.parametrize(
    ("url", "kind", "route", "asked"),
    [
        ("http://h/app/search?q=a", "http", None, "/health"),  # what is below it may be anything
        ("http://h/app", "http", "/search", "/app/health"),
        ("http://h/app?key=a", "chat", None, "/app/health?key=a"),
    ],
)
def test_health_and_the_like_are_not_looked_for_below_the_url_of_a_request(
    url: str, kind: str, route: str | None, asked: str
) -> None:
    assert site(url, kind).around(Pattern(RequestForm(route=route))).path("/health") == asked
