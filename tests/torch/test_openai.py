"""OpenAI's own client talks to the server unmodified."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.serving import served, tiny

openai = pytest.importorskip("openai")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")


@pytest.mark.device("cpu")
def test_the_official_client_reads_texts_streams_embeddings_and_errors(tmp_path: Path) -> None:
    with served(tiny(tmp_path), api_key="secret") as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
            assert [one.id for one in client.models.list()] == ["tiny"]
            told = [{"role": "user", "content": "the rest"}]
            asked = {"model": "tiny", "messages": told, "max_tokens": 8, "seed": 5}
            whole = client.chat.completions.create(**asked)
            assert whole.choices[0].finish_reason in ("stop", "length")
            assert 0 < whole.usage.completion_tokens <= 8
            stream = client.chat.completions.create(**asked, stream=True)
            parts = [one.choices[0].delta.content or "" for one in stream]
            assert "".join(parts) == whole.choices[0].message.content
            text = client.completions.create(model="tiny", prompt="the", max_tokens=4, logprobs=1)
            assert text.choices[0].logprobs.token_logprobs
            told = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
            assert all(len(one.top_logprobs) == 3 for one in told.choices[0].logprobs.content)
            found = client.embeddings.create(model="tiny", input=["the tin", "then"])
            assert [len(one.embedding) for one in found.data] == [64, 64]
            with pytest.raises(openai.BadRequestError, match="'temperature'"):
                client.completions.create(model="tiny", prompt="a", temperature=-1)
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("other")
        with (
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
