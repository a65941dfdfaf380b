"""A URL as the API's owner gives it is the URL that requests go to, and its key stands where it is looked for."""

from typing import Any

import pytest

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
    ],
)
def test_a_url_leads_to_one_path(url: str, kind: str, target: str) -> None:
    found = site(url, kind)
    path = found.path or {"chat": "/v1/chat/completions"}.get(kind, f"/v1/{kind}")
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
