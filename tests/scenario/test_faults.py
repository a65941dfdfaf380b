"""A user who errs is told what, where and how to mend it, for everything at once."""

import os
import textwrap
from pathlib import Path

import pytest

from loadtest.errors import ScenarioError
from loadtest.scenario import Override, load
from loadtest.workload.distribution import FORMS

MIX = "one workload stands under 'workload', several that are played together are the list 'mix'"


def faults(folder: Path, text: str | bytes, **flags: str) -> str:
    """The message for a file with this text, its path cut down to ``s.yaml``."""
    path = folder / "s.yaml"
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    overrides = {key: Override(value, "--" + key.replace("_", "-")) for key, value in flags.items()}
    with pytest.raises(ScenarioError) as caught:
        load(str(path), overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{path}:", f"{path.name}:")


DEEP = "a: " + "[" * 40 + "]" * 40
BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml: is empty: a scenario is a mapping, for example 'load: {concurrency: 4}'"),
        ("# only a comment\n", "s.yaml: is empty: a scenario is a mapping, for example 'load: {concurrency: 4}'"),
        (
            "- load\n",
            "s.yaml:1:1: a scenario is a mapping of keys to values, for example 'load: {concurrency: 4}'; "
            "here the file holds something else",
        ),
        (
            "load:\n\tconcurrency: 1\n",
            "s.yaml:2:1: is not valid YAML: a tab stands where only spaces may: indent with spaces",
        ),
        ("load: [1, 2\n", "s.yaml:2:1: is not valid YAML: expected ',' or ']', but got '<stream end>' "
         "while parsing a flow sequence"),
        ("a: b: c\n", "s.yaml:1:5: is not valid YAML: mapping values are not allowed here"),
        ("a: *x\n", "s.yaml:1:4: is not valid YAML: found undefined alias 'x'"),
        (
            "a: 1\n---\nb: 2\n",
            "s.yaml:2:1: a second document begins here ('---'): a scenario is one document",
        ),
        ("a: 1\nb: \x01\n", "s.yaml:2: YAML does not allow the character U+0001: remove it"),
        (b"a: 1\nb: \xff\n", "s.yaml:2: is not UTF-8 text: save it as UTF-8"),
        (b"#" * 70_000, "s.yaml: is larger than 64 KiB: this is not a scenario"),
        ("[" * 20_000, "s.yaml: is nested too deeply for a scenario"),
        (DEEP, "s.yaml:1:36: is nested too deeply for a scenario"),
        ("a: &a [*a]\n", "s.yaml:1:4: is nested too deeply for a scenario"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_scenario(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert faults(tmp_path, text) == message


def test_a_small_file_of_aliases_cannot_fill_the_memory(tmp_path: Path) -> None:
    assert faults(tmp_path, BOMB).endswith("more than 5000 values: this is not a scenario")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workloads: []", f"1:1: workloads: unknown key; {MIX}"),
        ("workload: [{}]", f"1:11: workload: expected a mapping of keys to values, got a list; {MIX}"),
        ("endpont: chat", "1:1: endpont: unknown key; did you mean 'endpoint'?"),
        ("load: {concurency: 4}", "1:8: load.concurency: unknown key; did you mean 'concurrency'?"),
        ("server: {max-batch-sizes: 4}", "1:10: server.max-batch-sizes: unknown key; did you mean 'max_batch_size'?"),
        ("concurrency: 4", "1:1: concurrency: unknown key here; it belongs under 'load'"),
        ("load: {seed: 4}", "1:8: load.seed: unknown key here; it belongs at the top of the file"),
        ("levels: [{duration: 3s}]", "1:11: levels.0.duration: unknown key here; it belongs under 'load'"),
        ("timeouts: {xyz: 1}", "1:12: timeouts.xyz: unknown key; expected one of total, connect, stall"),
        ("load: {concurrency: four}", "1:21: load.concurrency: expected a whole number, got 'four'"),
        ("load: {concurrency: '4'}", "1:21: load.concurrency: expected a whole number, got '4'"),
        ("load: {concurrency: [1, true]}", "1:25: load.concurrency: expected a whole number, got true"),
        ("load: {concurrency: [1, 2.5]}", "1:25: load.concurrency: expected a whole number, got 2.5"),
        ("load: {concurrency: [1, ~]}", "1:25: load.concurrency: expected a whole number, got nothing"),
        ("load: {concurrency: {a: 1}}", "1:21: load.concurrency: expected a whole number, got a mapping"),
        ("load: {concurrency: 0}", "1:21: load.concurrency: expected at least 1, got 0"),
        ("load: {concurrency: 2000000}", "1:21: load.concurrency: expected at most 1000000, got 2000000"),
        ("load: {concurrency: []}", "1:21: load.concurrency: is empty: expected a value, or remove the key"),
        ("load: {rate: 0}", "1:14: load.rate: expected more than 0, got 0"),
        ("load: {rate: fast}", "1:14: load.rate: expected a number, got 'fast'"),
        ("load: {rate: 1e999}", "1:14: load.rate: expected a number, got inf"),
        ("load: {duration: 30}", "1:18: load.duration: expected a duration with its unit: "
         "write 30s (or ms, m, h), got 30"),
        ("load: {duration: 1:30}", "1:18: load.duration: expected a duration with its unit: "
         "write for example 30s, 500ms or 2m, got '1:30'"),
        ("load: {duration: 0s}", "1:18: load.duration: expected more than 0s, got '0s'"),
        ("load: {duration: 200h}", "1:18: load.duration: expected at most 7 days (168h), got '200h'"),
        ("load: {requests: 10, warmup: 1s}", "1:30: load.warmup: needs a duration: a level bounded by requests "
         "alone is measured whole; remove one"),
        ("load: {duration: 10s, warmup: 10s}", "1:31: load.warmup: expected less than duration (line 1) of 10s, "
         "got 10s: nothing would be left to measure"),
        ("load: {warmup: 40s}", "1:16: load.warmup: expected less than the default duration of 30s, got 40s: "
         "nothing would be left to measure"),
        ("load: {arrival: poison, rate: 1}", "1:17: load.arrival: expected 'constant', 'poisson' or 'gamma', got "
         "'poison'; did you mean 'poisson'?"),
        ("load: {arrival: constant}", "1:17: load.arrival: applies to an open loop only: give a rate or "
         "stages, or remove it"),
        ("load:\n  concurrency: 1\n  rate: 2", "3:9: load.rate: excludes concurrency (line 2): a rate is an open "
         "loop, a concurrency a closed one; keep one"),
        ("levels: [{rate: 2, concurrency: 1}]", "1:17: levels.0.rate: excludes concurrency (line 1): a rate is an "
         "open loop, a concurrency a closed one; keep one"),
        ("load: {rate: 2, arrival: constant}\nlevels: [{concurrency: 1}]", "1:26: load.arrival: applies to an open "
         "loop only: give a rate or stages, or remove it"),
        ("load: {rate: 2, stages: [{rate: 1, duration: 5s}]}", "1:25: load.stages: excludes rate (line 1): stages have "
         "rates of their own; keep one"),
        ("levels: [{concurrency: 2, stages: [{rate: 1, duration: 5s}]}]", "1:35: levels.0.stages: excludes concurrency "
         "(line 1): stages are an open loop, a concurrency a closed one; keep one"),
        ("load: {stages: 5}", "1:16: load.stages: expected a list, got 5"),
        ("load: {stages: []}", "1:16: load.stages: is empty: expected a value, or remove the key"),
        ("load: {stages: [5]}", "1:17: load.stages: expected a mapping of keys to values, got 5"),
        ("load: {stages: [{rate: 5}]}", "1:17: load.stages.0: is missing 'duration'"),
        ("load: {stages: [{duration: 5s}]}", "1:17: load.stages.0: is missing its rate: write rate: 5, or from: 5, "
         "to: 50"),
        ("load: {stages: [{rate: 1, duration: 5s}, {from: 5, duration: 5s}]}", "1:42: load.stages.1: is missing 'to': "
         "a stage goes from one rate to another"),
        ("load: {stages: [{to: 5, duration: 5s}]}", "1:17: load.stages.0: is missing 'from': a stage goes from one "
         "rate to another"),
        ("load: {stages: [{rate: 1, to: 5, duration: 5s}]}", "1:24: load.stages.0.rate: excludes from and to: a stage "
         "has one rate or goes from one to another; keep one"),
        ("load: {stages: [{rate: -1, duration: 5s}]}", "1:24: load.stages.0.rate: expected at least 0, got -1"),
        ("load: {stages: [{from: 1, to: x, duration: 5s}]}", "1:31: load.stages.0.to: expected a number, got 'x'"),
        ("levels: [{stages: [{rate: 1, duration: 5}]}]", "1:40: levels.0.stages.0.duration: expected a duration with "
         "its unit: write 5s (or ms, m, h), got 5"),
        ("load: {stages: [{rat: 1, duration: 5s}]}", "1:18: load.stages.0.rat: unknown key; did you mean 'rate'?"),
        ("load: {stages: [{xyz: 1, duration: 5s}]}", "1:18: load.stages.0.xyz: unknown key; expected one of rate, "
         "from, to, duration"),
        ("load: {stages: [{rate: 0, duration: 5s}]}", "1:16: load.stages: are all of rate 0: nothing would be sent"),
        ("load:\n  stages: [{rate: 1, duration: 5s}]\n  duration: 9s", "3:13: load.duration: excludes stages (line 2): "
         "these last as long as each of them says; keep one"),
        ("load: {stages: [{rate: 1, duration: 5s}, {rate: 2, duration: 5s}], warmup: 10s}", "1:76: load.warmup: "
         "expected less than stages (line 1) of 10s, got 10s: nothing would be left to measure"),
        ("load: {rate: 1, burstiness: 0.5}", "1:29: load.burstiness: applies to the arrival 'gamma' only: ask for "
         "that, or remove it"),
        ("load: {rate: 1, arrival: gamma, burstiness: 0}", "1:45: load.burstiness: expected at least 0.01, got 0"),
        ("load: {rate: 1, when_full: drop}", "1:28: load.when_full: applies to max_in_flight only: give that, or "
         "remove it"),
        ("load: {concurrency: 1, max_in_flight: 5}", "1:39: load.max_in_flight: applies to an open loop only: give a "
         "rate or stages, or remove it"),
        ("load: {rate: 1, max_in_flight: '5:drop'}", "1:32: load.max_in_flight: expected a whole number, got '5:drop'"),
        ("load: {rate: 1, max_rate: 0}", "1:27: load.max_rate: expected more than 0, got 0"),
        ("abort_on: eror_rate > 50%", "1:11: abort_on: 'eror_rate' is no metric to abort on: they are error_rate, "
         "in_flight, silence; did you mean 'error_rate'?"),
        ("abort_on: 50%", "1:11: abort_on: expected METRIC OP VALUE for TIME, such as 'error_rate > 50% for 5s', "
         "'in_flight > 500 for 10s' or 'silence > 60s', got '50%'"),
        ("abort_on: 5", "1:11: abort_on: expected a rule such as error_rate > 50% for 5s, got 5"),
        ("load: {abort_on: x}", "1:8: load.abort_on: unknown key here; it belongs at the top of the file"),
        ("max_rate: 5", "1:1: max_rate: unknown key here; it belongs under 'load'"),
        ("levels: {rate: 2}", "1:9: levels: expected a list, got a mapping"),
        ("levels: []", "1:9: levels: is empty: expected a value, or remove the key"),
        ("levels: [5]", "1:10: levels.0: expected a mapping of keys to values, got 5"),
        ("timeouts: 5s", "1:11: timeouts: expected a mapping of keys to values, got '5s'"),
        ("workload: {input_tokens: unifrm(1)}", "1:26: workload.input_tokens: 'unifrm(1)' is not a length: "
         f"there is no distribution 'unifrm': write {FORMS}"),
        ("workload: {input_tokens: 'uniform(9, 2)'}", "1:26: workload.input_tokens: 'uniform(9, 2)' is not a length: "
         "its range is empty"),
        ("workload: {output_tokens: [1, 20000000]}", "1:31: workload.output_tokens: expected at most 10000000 "
         "tokens, got 20000000"),
        ("workload: {output_tokens: true}", "1:27: workload.output_tokens: expected a number of tokens (128) or "
         "uniform(64, 192), got true"),
        ("server: {kv_slots: 4}", "1:20: server.kv_slots: expected at least the largest max_batch_size (16), got 4"),
        ("server: {kv_slots: 4}\nlevels: [{max_batch_size: 2}, {max_batch_size: [2, 8]}]",
         "1:20: server.kv_slots: expected at least the largest max_batch_size (8), got 4"),
        ("server: {model: 7}", "1:17: server.model: expected text, got 7: put it in quotes"),
        ("server: {model: ''}", "1:17: server.model: is empty: expected a value, or remove the key"),
        ("workload: {correlation: 2, input_tokens: 'exponential(9)', output_tokens: 'exponential(9)'}",
         "1:25: workload.correlation: expected at most 1, got 2"),
        ("workload: {correlation: 0.5}", "1:25: workload.correlation: applies to two lengths that vary: give "
         "distributions, such as uniform(64, 192)"),
        ("workload: {corpus: gone.txt}", "1:20: workload.corpus: no such file: FOLDER/gone.txt"),
        ("workload: {data: {path: .}}", "1:25: workload.data.path: is a folder: name a file in it: FOLDER"),
        ("workload: {data: {format: csv}}", "1:18: workload.data: is missing 'path'"),
        ("workload: {data: {path: s.yaml, format: cvs}}", "1:41: workload.data.format: expected 'sharegpt', 'chat', "
         "'openai-batch', 'jsonl', 'csv', 'parquet' or 'text', got 'cvs'; did you mean 'csv'?"),
        ("workload: {data: {path: s.yaml, ordr: file}}",
         "1:33: workload.data.ordr: unknown key; did you mean 'order'?"),
        ("workload: {data: {path: s.yaml, columns: {promt: q}}}", "1:43: workload.data.columns.promt: unknown key; did "
         "you mean 'prompt'?"),
        ("workload: {data: {path: s.yaml, input_tokens: 5}}",
         "1:47: workload.data.input_tokens: expected [least, most] "
         "tokens, such as [16, 4000] or [null, 4000], got 5"),
        ("workload: {data: {path: s.yaml, input_tokens: [9, 5]}}", "1:47: workload.data.input_tokens: the least "
         "comes first, then the most"),
        ("workload: {data: s.yaml}", "1:18: workload.data: expected a mapping of keys to values, got 's.yaml': write "
         "{path: s.yaml}"),
        ("load: {trace: s.yaml}", "1:15: load.trace: expected a mapping of keys to values, got 's.yaml': write "
         "{path: s.yaml}"),
        ("probe_stream: {rate: 1, tokens: 3}",
         "1:25: probe_stream.tokens: unknown key; did you mean 'input_tokens'?"),
        ("workload: {data: {path: s.yaml}, input_tokens: 5}", "1:48: workload.input_tokens: excludes data (line 1): "
         "prompts are as long as they are there; keep one"),
        ("workload: {data: {path: s.yaml}, correlation: 0.5}",
         "1:47: workload.correlation: excludes data (line 1): the "
         "lengths are those that are there; keep one"),
        ("workload: {data: {path: s.yaml}, corpus: unicode}",
         "1:42: workload.corpus: excludes data (line 1): no text is "
         "made where it is read; keep one"),
        ("workload: {data: {path: s.yaml}}\nlevels: [{input_tokens: 5}]", "2:25: levels.0.input_tokens: excludes data "
         "(line 1): prompts are as long as they are there; keep one"),
        ("workload: {prefix: {share: 2, tokens: 5, pool: 1}}",
         "1:28: workload.prefix.share: expected at most 1, got 2"),
        ("workload: {prefix: {share: 0.5, tokens: 5}}", "1:20: workload.prefix: is missing 'pool'"),
        ("workload: {think: 5s}", "1:12: workload.think: unknown key here; it belongs under 'conversation'"),
        ("workload: {conversation: {think: 5s}}", "1:26: workload.conversation: is missing 'turns': how many a session "
         "has, such as uniform(2, 6)"),
        ("workload: {conversation: {turns: 3, think: 5}}",
         "1:44: workload.conversation.think: expected times with their "
         "units: write 5s (or ms, m, h), got 5"),
        ("workload: {conversation: {turns: 3, think: soon}}", "1:44: workload.conversation.think: expected a time or a "
         "distribution of times, such as 5s or exponential(5s), got 'soon'"),
        ("workload: {conversation: {turns: 3, abandon: 10}}",
         "1:46: workload.conversation.abandon: expected at most 1, "
         "got 10"),
        ("workload: {conversation: {next_input: 5}, data: {path: s.yaml}}", "1:39: "
         "workload.conversation.next_input: excludes data (line 1): prompts are as long as they are there; keep one"),
        ("workload: {conversation: {turns: 3}}\nendpoint: completions",
         "1:26: workload.conversation: needs an endpoint of messages, such as "
         "chat: completions takes plain text"),
        ("workload: {images: {size: 512x512}}\nendpoint: completions",
         "1:20: workload.images: needs an endpoint of messages, such as chat: "
         "completions takes plain text"),
        ("workload: {images: {size: 512}}", "1:27: workload.images.size: expected width and height in pixels, such as "
         "512x512, got 512"),
        ("workload: {models: {a: 0}}", "1:24: workload.models.a: expected more than 0, got 0"),
        ("workload: {models: {'': 1}}", "1:25: workload.models.: is empty: expected a value, or remove the key"),
        ("workload: {model: a}", "1:12: workload.model: unknown key here; it belongs at the top of the file"),
        ("workload: {models: [a, b]}", "1:20: workload.models: expected a mapping of keys to values, got a list"),
        ("workload: {models: {a: 1, b: 1}}\nmodel: c", "2:8: model: excludes models (line 1): these are asked instead; "
         "keep one"),
        ("workload: {body: {stream: false}}", "1:18: workload.body: stream is not given here: 'stream' says it"),
        ("workload: {body: {temperature: 1e999}}", "1:18: workload.body: holds a number that JSON has not"),
        ("workload: {body: 5}", "1:18: workload.body: expected a mapping of keys to values, got 5"),
        ("endpoint: embeddings\nworkload: {output_tokens: 5}", "2:27: workload.output_tokens: does not apply: the "
         "endpoint embeddings writes no answer"),
        ("mix: [{weight: 1}]", "1:7: mix.0: is missing 'name'"),
        ("mix: [{name: a, input_tokens: [1, 2]}]", "1:31: mix.0.input_tokens: expected a number of tokens (128) or "
         "uniform(64, 192), got a list"),
        ("mix: [{name: a}, {name: a}]", "1:25: mix.1.name: is that of an earlier part, too: name (line 1); rename one"),
        ("mix: [{name: a}]\nworkload: {input_tokens: 5}", "2:26: workload.input_tokens: excludes mix (line 1): each of "
         "its parts has its own; keep one"),
        ("mix: [{name: a}]\nlevels: [{output_tokens: 5}]", "2:26: levels.0.output_tokens: excludes mix (line 1): each "
         "of its parts has its own; keep one"),
        ("mix: [{name: a}]\nload: {trace: {path: s.yaml}}", "2:15: load.trace: excludes mix (line 1): a trace is one "
         "workload; keep one"),
        ("load: {rate: 1, trace: {path: s.yaml}}", "1:24: load.trace: excludes rate (line 1): a trace has times of its "
         "own; keep one"),
        ("load: {trace: {path: s.yaml, speed: fast}}",
         "1:37: load.trace.speed: expected how many times as fast, such as "
         "2 or 2x, got 'fast'"),
        ("load: {trace: {path: s.yaml, window: [20m, 10m]}}",
         "1:38: load.trace.window: it ends before it starts"),
        ("load: {trace: {path: s.yaml}, duration: 5s}",
         "1:41: load.duration: excludes trace (line 1): it lasts as long "
         "as its window; keep one"),
        ("load: {trace: {path: s.yaml}, arrival: constant}", "1:40: load.arrival: applies to an open loop only: give a "
         "rate or stages, or remove it"),
        ("load: {trace: {path: s.yaml}}\nworkload: {input_tokens: 5}", "2:26: workload.input_tokens: excludes trace "
         "(line 1): prompts are as long as they are there; keep one"),
        ("load: {trace: {path: s.yaml}}\nworkload: {data: {path: s.yaml}}", "2:18: workload.data: excludes trace (line "
         "1): a trace says what is asked; keep one"),
        ("load: {trace: {path: s.yaml}}\nworkload: {conversation: {think: 5s}}", "2:34: "
         "workload.conversation.think: excludes trace (line 1): its turns have times of their own; keep one"),
        ("load: {concurrency: [1, 2, 3], combine: zip}\nworkload: {input_tokens: [1, 2]}", "1:41: load.combine: zip "
         "takes lists of one length, or single values: concurrency has 3, input_tokens has 2"),
        ("workload: {input_tokens: {file: gone.csv}}", "1:26: workload.input_tokens: no such file: FOLDER/gone.csv"),
        ("workload: {input_tokens: {file: s.yaml}}\n# 5", "1:26: workload.input_tokens: s.yaml:2: no length, nor "
         "a length and its weight"),
        ("load: {repeat: 0}", "1:16: load.repeat: expected at least 1, got 0"),
        ("load: {cooldown: 5}",
         "1:18: load.cooldown: expected a duration with its unit: write 5s (or ms, m, h), got 5"),
        ("probe_stream: {input_tokens: 5}", "1:15: probe_stream: is missing 'rate'"),
        ("tokenizer: ./gone", "1:12: tokenizer: no such file: FOLDER/gone"),
        ("model: []", "1:8: model: is empty: expected a value, or remove the key"),
        ("stream: yes", "1:9: stream: expected true or false, got 'yes'"),
        ("name: a/b", "1:7: name: expected letters, digits, '.', '_' and '-', beginning with a letter or digit, "
         "got 'a/b'"),
        (r'question: "a\ud800"', r"1:11: question: expected text without control characters, got 'a\ud800'"),
        (r'model: "\x1b[31m"', r"1:8: model: expected text without control characters, got '\x1b[31m'"),
        (r'"\x1b[31m": 1', None),
        ("question: " + "x" * 2000, "1:11: question: expected at most 1000 characters, got 2000"),
        ("seed: -1", "1:7: seed: expected at least 0, got -1"),
        ("seed: 1\nseed: 2", "2:1: seed: given twice, first on line 1: keep one"),
        ("seed: !!python/name:os.system x", None),
        ("? [a, b]\n: 1", "1:3: a key must be a word"),
    ],
)  # fmt: skip
def test_a_fault_has_its_place_and_its_mend(tmp_path: Path, text: str, message: str | None) -> None:
    found = faults(tmp_path, text)
    if message is not None:
        assert found == f"s.yaml:{message}".replace("FOLDER", str(tmp_path))
    assert "\n" not in found
    assert "\x1b" not in found


def test_all_faults_of_file_and_flags_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
        endpont: chat
        load:
          concurrency: [1, four]
          rate: 3
          duration: 30
        levels:
          - {scheduler: continous, input_tokens: 0}
        timeouts: 5
        seed: 1
        seed: 2
    """
    assert faults(tmp_path, text, threads="x", timeout="300", stall_timeout="") == textwrap.dedent("""\
        the scenario has 11 faults:
          s.yaml:1:1: endpont: unknown key; did you mean 'endpoint'?
          s.yaml:3:20: load.concurrency: expected a whole number, got 'four'
          s.yaml:4:9: load.rate: excludes concurrency (line 3): a rate is an open loop, a concurrency a closed one; keep one
          s.yaml:5:13: load.duration: expected a duration with its unit: write 30s (or ms, m, h), got 30
          s.yaml:7:17: levels.0.scheduler: expected 'continuous', 'dynamic', 'static' or 'none', got 'continous'; did you mean 'continuous'?
          s.yaml:7:42: levels.0.input_tokens: 0 is not a length: it takes whole numbers of tokens, 1 or more
          s.yaml:8:11: timeouts: expected a mapping of keys to values, got 5
          s.yaml:10:1: seed: given twice, first on line 9: keep one
          --stall-timeout: expected a duration with its unit: write for example 30s, 500ms or 2m, got ''
          --threads: expected a whole number, got 'x'
          --timeout: expected a duration with its unit: write 300s (or ms, m, h), got 300""")  # noqa: E501


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"concurrency": "1,,4"}, "--concurrency: expected a whole number, got ''"),
        ({"concurrency": "1", "rate": "2"}, "--rate: excludes concurrency (--concurrency): a rate is an open loop, "
         "a concurrency a closed one; keep one"),
        ({"concurrency": "1", "arrival": "constant"}, "--arrival: applies to an open loop only: give a rate or "
         "stages, or remove it"),
        ({"concurrency": "1", "max_in_flight": "5"}, "--max-in-flight: applies to an open loop only: give a rate or "
         "stages, or remove it"),
        ({"rate": "1", "max_in_flight": "5:dorp"}, "--max-in-flight: expected 'queue' or 'drop', got 'dorp'; did you "
         "mean 'drop'?"),
        ({"rate": "1", "max_in_flight": "many:drop"}, "--max-in-flight: expected a whole number, got 'many'"),
        ({"rate": "1", "max_in_flight": "5:"}, "--max-in-flight: expected 'queue' or 'drop', got ''"),
        ({"rate": "1", "burstiness": "2"}, "--burstiness: applies to the arrival 'gamma' only: ask for that, or remove "
         "it"),
        ({"abort_on": "error_rate > 50"}, "--abort-on: an error_rate of 50 cannot be: write 50% or a fraction such as "
         "0.5"),
        ({"scheduler": "continuous,statik"}, "--scheduler: expected 'continuous', 'dynamic', 'static' or 'none', "
         "got 'statik'; did you mean 'static'?"),
        ({"input_tokens": "uniform(64, 192), 5x"}, "--input-tokens: '5x' is not a length: "
         f"write {FORMS}"),
        ({"seed": "null"}, "--seed: expected a whole number, got 'null'"),
        ({"stream": "maybe"}, "--stream: expected true or false, got 'maybe'"),
        ({"duration": "5s", "warmup": "6s"}, "--warmup: expected less than duration (--duration) of 5s, got 6s: "
         "nothing would be left to measure"),
        ({"threads": "1,2"}, "--threads: expected a whole number, got '1,2'"),
        ({"model": "\udcff"}, r"--model: expected text without control characters, got '\udcff'"),
        ({"model": ""}, "--model: is empty: expected a value, or remove the key"),
        ({"concurrency": ",".join(map(str, range(1, 102)))}, "--concurrency: expected at most 100 values, got 101"),
    ],
)  # fmt: skip
def test_a_fault_in_a_flag_names_the_flag(flags: dict[str, str], message: str) -> None:
    overrides = {key: Override(value, "--" + key.replace("_", "-")) for key, value in flags.items()}
    with pytest.raises(ScenarioError) as caught:
        load(None, overrides)
    assert str(caught.value) == message


def test_uniform_without_quotes_where_yaml_splits_at_its_comma(tmp_path: Path) -> None:
    text = """\
        workload:
          input_tokens: [uniform(1, 2)]
          output_tokens: uniform(1, 2)
        levels: [{input_tokens: uniform(1, 2)}]
    """
    assert faults(tmp_path, text) == textwrap.dedent("""\
        the scenario has 4 faults:
          s.yaml:2:18: workload.input_tokens: expected a length: between { } or [ ] write "uniform(64, 192)" in quotes, got 'uniform(1'
          s.yaml:2:29: workload.input_tokens: expected a length: between { } or [ ] write "uniform(64, 192)" in quotes, got '2)'
          s.yaml:4:25: levels.0.input_tokens: expected a length: between { } or [ ] write "uniform(64, 192)" in quotes, got 'uniform(1'
          s.yaml:4:36: levels.0.2): belongs to the value before it: between { } write "uniform(64, 192)" in quotes""")  # noqa: E501


def test_a_flag_at_odds_with_the_file_names_both(tmp_path: Path) -> None:
    found = faults(tmp_path, "load:\n  duration: 10s\n", warmup="20s")
    assert found == (
        "--warmup: expected less than duration (s.yaml:2) of 10s, got 20s: nothing would be left to measure"
    )


def test_a_duration_asked_of_a_preset_with_stages_is_refused_in_words() -> None:
    with pytest.raises(ScenarioError) as caught:
        load("spike", {"duration": Override("60s", "--duration")})
    assert str(caught.value) == (
        "--duration: excludes stages (spike.yaml:10): these last as long as each of them says; keep one"
    )


def test_a_matrix_that_nobody_can_wait_for_is_refused() -> None:
    hundred = ",".join(map(str, range(1, 101)))
    flags = {key: Override(hundred, f"--{key}") for key in ("concurrency", "input_tokens")}
    with pytest.raises(ScenarioError, match="make 10000 levels, at most 1000"):
        load(None, flags)


def test_a_path_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"gone\.yaml: no such file$"):
        load(str(tmp_path / "gone.yaml"), {})
    with pytest.raises(ScenarioError, match="is a folder: name a scenario file in it"):
        load(str(tmp_path), {})
    with pytest.raises(ScenarioError, match="cannot be read: "):
        load("a\0.yaml", {})
    with pytest.raises(ScenarioError, match="cannot be read: File name too long"):
        load("a" * 5000 + ".yaml", {})


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("seed: 1")
    path.chmod(0)
    with pytest.raises(ScenarioError, match="cannot be read: Permission denied"):
        load(str(path), {})
