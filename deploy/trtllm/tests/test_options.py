"""What can be started, and with what."""

import json
import tempfile
import unittest
from pathlib import Path

from trtllm_worker.options import RANK_SOURCE_VARIABLE, OptionsError, parse

KEEPS = {"enable_attention_dp": True, "attention_dp_config": {"kv_cache_routing_conversation_affinity": True}}
AFFINITY = ["--tensor-parallel-size", "4", "--conversation-affinity"]


def options(arguments=(), engine=None, environment=None):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.json"
        path.write_text(json.dumps(engine or {}), encoding="utf-8")
        return parse(["--model", "m", "--engine-options", str(path), *arguments], environment or {})


class Starting(unittest.TestCase):
    def refused(self, words, *more, **kwargs):
        with self.assertRaisesRegex(OptionsError, words):
            options(*more, **kwargs)

    def test_there_is_a_rank_per_gpu_with_attention_dp_and_one_without(self):
        self.assertEqual(options(["--tensor-parallel-size", "8"]).dp_size, 1)
        both = options(["--tensor-parallel-size", "8", "--enable-attention-dp"])
        self.assertEqual((both.dp_size, both.engine["enable_attention_dp"]), (8, True))
        self.assertEqual(options([], {"tensor_parallel_size": 4, "enable_attention_dp": True}).dp_size, 4)

    def test_a_flag_may_not_contradict_the_engines_options(self):
        self.refused("enable_attention_dp says False", ["--enable-attention-dp"], {"enable_attention_dp": False})
        self.refused("tensor_parallel_size says 2", ["--tensor-parallel-size", "4"], {"tensor_parallel_size": 2})

    def test_affinity_needs_an_engine_that_keeps_conversations(self):
        self.assertTrue(options(AFFINITY, KEEPS).conversation_affinity)
        self.refused("enable_attention_dp", AFFINITY, {})
        self.refused("enable_attention_dp", AFFINITY, {**KEEPS, "enable_attention_dp": False})
        self.refused("kv_cache_routing_conversation_affinity", AFFINITY, {"enable_attention_dp": True})
        for broken in ({"kv_cache_routing_conversation_affinity": False}, "yes", {}):
            engine = {**KEEPS, "attention_dp_config": broken}
            self.refused("kv_cache_routing_conversation_affinity", AFFINITY, engine)

    def test_autodeploy_is_refused(self):
        self.refused("AutoDeploy", ["--backend", "_autodeploy"])
        self.refused("AutoDeploy", AFFINITY, {**KEEPS, "backend": "_autodeploy"})

    def test_the_engine_chooses_ranks_unless_told_otherwise(self):
        flag = "--conversation-affinity-dp-rank-source"
        environment = {RANK_SOURCE_VARIABLE: "dynamo"}
        self.assertEqual(options().rank_source, "engine")
        self.assertEqual(options([flag, "router"]).rank_source, "router")
        self.assertEqual(options([flag, "dynamo"]).rank_source, "router")
        self.assertEqual(options(environment=environment).rank_source, "router")
        self.assertEqual(options([flag, "engine"], environment=environment).rank_source, "engine")
        self.refused(f"{flag} is engine, router or dynamo", [flag, "client"])
        self.refused(RANK_SOURCE_VARIABLE, environment={RANK_SOURCE_VARIABLE: "client"})

    def test_events_and_metrics_are_asked_of_the_engine(self):
        quiet = options()
        self.assertFalse(quiet.publish_kv_events or quiet.publish_metrics or quiet.warnings)
        self.assertNotIn("enable_iter_perf_stats", quiet.engine)
        events = options(["--publish-kv-events"], {"kv_cache_config": {"tokens_per_block": 64}})
        section = events.engine["kv_cache_config"]
        self.assertEqual(section, {"tokens_per_block": 64, "enable_block_reuse": True, "event_buffer_max_size": 65536})
        self.assertEqual((events.tokens_per_block, events.publish_metrics), (64, False))
        metrics = options(["--publish-metrics"])
        self.assertEqual((metrics.engine["enable_iter_perf_stats"], metrics.publish_kv_events), (True, False))
        self.refused("enable_block_reuse", ["--publish-kv-events"], {"kv_cache_config": {"enable_block_reuse": False}})

    def test_the_old_joint_flag_means_both_and_warns(self):
        both = options(["--publish-events-and-metrics"])
        self.assertTrue(both.publish_kv_events and both.publish_metrics)
        self.assertIn("two flags now", both.warnings[0])

    def test_a_file_that_holds_no_options_is_named(self):
        with self.assertRaisesRegex(OptionsError, "read --engine-options /nowhere.json"):
            parse(["--model", "m", "--engine-options", "/nowhere.json"], {})
        self.refused("is not a mapping", engine=[1])
