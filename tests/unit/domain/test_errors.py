"""Messages of servers, as users see them."""

from __future__ import annotations

from controlplane.domain.errors import server_words


def test_a_servers_message_is_shown_without_the_traceback_of_a_models_code() -> None:
    text = "ValueError: no such weights\n\nAt:\n  /models/m/1/model.py(1): <module>\n"
    assert server_words(text) == "ValueError: no such weights"
    assert server_words("load failed for model 'm';") == "load failed for model 'm'"
    assert len(server_words(400 * "x")) == 300
