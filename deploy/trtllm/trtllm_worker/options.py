"""What the worker is started with: flags, one environment variable, and the engine's own options from a file.

Everything that cannot work together is refused here, before an engine is built.
"""

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RANK_SOURCE_VARIABLE = "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE"
# "dynamo" is the older word for whoever routes.
RANK_SOURCES = {"engine": "engine", "router": "router", "dynamo": "router"}
# The engine's own default.
TOKENS_PER_BLOCK = 32
# Events kept until they are drained: a rank announces up to some thousand a second.
EVENT_BUFFER = 65_536


class OptionsError(Exception):
    """The options cannot be; the text says which and what to do."""


@dataclass(frozen=True)
class Options:
    """What the worker does, checked."""

    model_name: str
    host: str
    port: int
    # Arguments of LLM.
    engine: dict[str, Any]
    # Attention-DP ranks; 1 without attention DP.
    dp_size: int
    tokens_per_block: int
    conversation_affinity: bool
    # Who chooses the rank of a conversation's first turn: "engine" or "router".
    rank_source: str
    # Whether the engine keeps a conversation on the rank its first turn named; None: find out from the engine.
    first_rank_recorded: bool | None
    publish_kv_events: bool
    publish_metrics: bool
    # What the operator should know.
    warnings: tuple[str, ...]


def parse(arguments: list[str], environment: dict[str, str] | None = None) -> Options:
    """Reads flags and environment; a flag wins. Raises OptionsError."""
    environment = dict(os.environ) if environment is None else environment
    flags = _parser().parse_args(arguments)
    return check(flags, environment, read_engine_options(flags.engine_options))


def read_engine_options(path: Path | None) -> dict[str, Any]:
    """The engine's options from a YAML or JSON file; empty without one."""
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            options = json.loads(text)
        else:
            # It comes with TensorRT-LLM; JSON is read without it.
            import yaml

            options = yaml.safe_load(text)
    except (OSError, ValueError, ImportError) as error:
        raise OptionsError(f"read --engine-options {path}: {error}") from error
    except Exception as error:
        # yaml's errors have no base class that can be named before it is imported.
        raise OptionsError(f"read --engine-options {path}: {error}") from error
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise OptionsError(f"--engine-options {path} is not a mapping")
    return options


def check(flags: argparse.Namespace, environment: dict[str, str], engine: dict[str, Any]) -> Options:
    """What the flags and the engine's options say together."""
    engine = dict(engine)
    warnings = []
    if flags.publish_events_and_metrics:
        warnings.append(
            "--publish-events-and-metrics is two flags now: --publish-kv-events and --publish-metrics; both are on"
        )
    kv_events = flags.publish_kv_events or flags.publish_events_and_metrics
    metrics = flags.publish_metrics or flags.publish_events_and_metrics

    if "autodeploy" in str(_agreed(engine, "backend", flags.backend, "--backend") or "").lower():
        raise OptionsError("AutoDeploy has no attention-DP ranks to choose from: use --backend pytorch")
    engine["model"] = flags.model
    ranks = _agreed(engine, "tensor_parallel_size", flags.tensor_parallel_size, "--tensor-parallel-size") or 1
    if not isinstance(ranks, int) or ranks < 1:
        raise OptionsError(f"tensor_parallel_size is a number of GPUs, not {ranks!r}")
    attention_dp = bool(
        _agreed(engine, "enable_attention_dp", True if flags.enable_attention_dp else None, "--enable-attention-dp")
    )
    kv_cache = _kv_cache(engine, kv_events)
    if metrics:
        engine["enable_iter_perf_stats"] = True

    return Options(
        model_name=flags.served_model_name or flags.model,
        host=flags.host,
        port=flags.port,
        engine=engine,
        dp_size=ranks if attention_dp else 1,
        tokens_per_block=kv_cache.get("tokens_per_block") or TOKENS_PER_BLOCK,
        conversation_affinity=_affinity(flags.conversation_affinity, engine, attention_dp),
        rank_source=_rank_source(flags, environment),
        first_rank_recorded={"auto": None, "yes": True, "no": False}[flags.first_rank_recorded],
        publish_kv_events=kv_events,
        publish_metrics=metrics,
        warnings=tuple(warnings),
    )


def _agreed(engine: dict[str, Any], key: str, flag: Any, name: str) -> Any:
    """Puts a flag among the engine's options, where it may not contradict what stands there."""
    if flag is None:
        return engine.get(key)
    if engine.setdefault(key, flag) != flag:
        raise OptionsError(f"{name} says {flag} and the engine's {key} says {engine[key]}")
    return flag


def _kv_cache(engine: dict[str, Any], kv_events: bool) -> dict[str, Any]:
    section = engine.get("kv_cache_config") or {}
    if not isinstance(section, dict):
        raise OptionsError("the engine's kv_cache_config is not a mapping")
    if not kv_events:
        return section
    if section.get("enable_block_reuse") is False:
        raise OptionsError("--publish-kv-events needs the engine's kv_cache_config.enable_block_reuse")
    section = {**section, "enable_block_reuse": True}
    section["event_buffer_max_size"] = section.get("event_buffer_max_size") or EVENT_BUFFER
    engine["kv_cache_config"] = section
    return section


def _affinity(wanted: bool, engine: dict[str, Any], attention_dp: bool) -> bool:
    """Whether conversations are named to the engine, which must be told to keep them."""
    if not wanted:
        return False
    if not attention_dp:
        raise OptionsError("--conversation-affinity needs the engine's enable_attention_dp")
    section = engine.get("attention_dp_config") or {}
    if not isinstance(section, dict) or section.get("kv_cache_routing_conversation_affinity") is not True:
        raise OptionsError(
            "--conversation-affinity needs the engine's attention_dp_config.kv_cache_routing_conversation_affinity: "
            "without it the engine forgets every conversation at once"
        )
    return True


def _rank_source(flags: argparse.Namespace, environment: dict[str, str]) -> str:
    said = flags.conversation_affinity_dp_rank_source
    where = "--conversation-affinity-dp-rank-source"
    if said is None:
        said, where = environment.get(RANK_SOURCE_VARIABLE) or "engine", RANK_SOURCE_VARIABLE
    if said not in RANK_SOURCES:
        raise OptionsError(f"{where} is engine, router or dynamo, not {said!r}")
    return RANK_SOURCES[said]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trtllm_worker", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a checkpoint's folder or name")
    parser.add_argument("--served-model-name", help="the name by which clients ask for it; --model when left out")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; there is no authentication")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--engine-options", type=Path, help="a YAML or JSON file of LLM's arguments")
    parser.add_argument("--backend", help="LLM's backend; not AutoDeploy")
    parser.add_argument("--tensor-parallel-size", type=int, help="GPUs; with attention DP also ranks")
    parser.add_argument("--enable-attention-dp", action="store_true", help="a rank per GPU, each with its own cache")
    parser.add_argument("--conversation-affinity", action="store_true", help="name conversations to the engine")
    parser.add_argument(
        "--conversation-affinity-dp-rank-source",
        metavar="{engine,router,dynamo}",
        help=f"who chooses the rank of a first turn; engine when left out, or what {RANK_SOURCE_VARIABLE} says",
    )
    parser.add_argument(
        "--first-rank-recorded",
        choices=["auto", "yes", "no"],
        default="auto",
        help="whether the engine keeps a conversation on the rank that its first turn named; auto asks the engine",
    )
    parser.add_argument("--publish-kv-events", action="store_true", help="serve POST /kv_cache_events")
    parser.add_argument("--publish-metrics", action="store_true", help="serve the load of each rank at /metrics")
    parser.add_argument("--publish-events-and-metrics", action="store_true", help="both; deprecated")
    return parser
