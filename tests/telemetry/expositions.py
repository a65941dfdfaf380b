"""What each kind of server says at two moments, in the form of its documents: with buckets, ranks and other series."""

from loadtest.telemetry.names import Kind

VLLM = (
    """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 11.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.51
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.72
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 10.0
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 500.0
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 1.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 2.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 1.0
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_count{engine="0",model_name="m"} 2.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 2.0
# TYPE vllm:request_decode_time_seconds histogram
vllm:request_decode_time_seconds_sum{engine="0",model_name="m"} 8.0
process_cpu_seconds_total 12.5
""",
    {
        "prefix_cache_queries_total": 300, "prefix_cache_hits_total": 110, "num_preemptions_total": 7,
        "prompt_tokens_total": 3000, "generation_tokens_total": 900, "request_queue_time_seconds_count": 12,
        "request_queue_time_seconds_sum": 3, "request_prefill_time_seconds_sum": 5,
        "request_decode_time_seconds_sum": 9,
    },
)  # fmt: skip
SGLANG = (
    """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",priority="",tp_rank="0"} 14.0
sglang:num_running_reqs{engine_type="unified",model_name="m",priority="",tp_rank="1"} 14.0
sglang:num_running_reqs{engine_type="unified",model_name="m",priority="2",tp_rank="0"} 9.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2.0
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.28
# TYPE sglang:cache_hit_rate gauge
sglang:cache_hit_rate{model_name="m"} 0.0075
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{model_name="m"} 100.0
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 8000.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="m"} 7000.0
""",
    {"cached_tokens_total": 600, "prompt_tokens_total": 9000, "generation_tokens_total": 7500},
)
TGI = (
    """\
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 6
# TYPE tgi_queue_size gauge
tgi_queue_size 3
# TYPE tgi_batch_next_size histogram
tgi_batch_next_size_bucket{le="8"} 1
tgi_batch_next_size_sum 40
tgi_batch_next_size_count 10
# TYPE tgi_request_input_length histogram
tgi_request_input_length_sum 1000
tgi_request_input_length_count 10
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="1"} 0
tgi_request_generated_tokens_sum 2000
tgi_request_generated_tokens_count 10
# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_sum 1.5
tgi_request_queue_duration_count 10
# TYPE tgi_batch_inference_duration histogram
tgi_batch_inference_duration_sum{method="prefill"} 1
tgi_batch_inference_duration_sum{method="decode"} 9
""",
    {
        "batch_next_size_sum": 100, "batch_next_size_count": 20, "request_input_length_sum": 1500,
        "request_generated_tokens_sum": 2800, "request_queue_duration_sum": 2.5, "request_queue_duration_count": 15,
        'batch_inference_duration_sum{method="prefill"}': 2, 'batch_inference_duration_sum{method="decode"}': 10,
    },
)  # fmt: skip
TRITON = (
    """\
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a",version="1"} 50
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} 100
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="a",version="1"} 50
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="a",version="1"} 1000000
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="a",version="1"} 5
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.78
""",
    {
        "inference_request_success": 60, "inference_count": 180, "inference_exec_count": 60,
        "inference_queue_duration_us": 1500000,
    },
)  # fmt: skip
TENSORRT_LLM = (
    TRITON[0]
    + """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 8
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
""",
    TRITON[1],
)
LLAMACPP = (
    """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 6886
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 20
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 3469
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 30
# TYPE llamacpp:kv_cache_usage_ratio gauge
llamacpp:kv_cache_usage_ratio 0.25
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
""",
    {
        "prompt_tokens_total": 7886, "prompt_seconds_total": 21, "tokens_predicted_total": 4469,
        "tokens_predicted_seconds_total": 33,
    },
)  # fmt: skip
DCGM = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100",Hostname="node"} 1755
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100",Hostname="node"} 1980
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100",Hostname="node"} 98
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100",Hostname="node"} 9.2e+18
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",Hostname="node"} 60000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",Hostname="node"} 20000
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",Hostname="node"} 695.5
DCGM_FI_DEV_POWER_MGMT_LIMIT{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",Hostname="node"} 700
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",Hostname="node"} 8000000
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",Hostname="node"} 4
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",GPU_I_ID="1",GPU_I_PROFILE="1g.10gb",Hostname="node"} 1
"""


def later(first: str, grown: dict[str, float]) -> str:
    """The exposition a second on, its counters grown to these values."""
    lines = []
    for line in first.splitlines():
        name, _, value = line.rpartition(" ")
        for part, more in grown.items():
            bare = name if "{" in part else name.partition("{")[0]
            if bare.endswith((f":{part}", f"_{part}")) and not line.startswith("#"):
                value = str(more)
        lines.append(f"{name} {value}")
    return "\n".join(lines) + "\n"


RECORDED: dict[Kind, tuple[str, dict[str, float]]] = {
    "vllm": VLLM, "sglang": SGLANG, "tgi": TGI, "triton": TRITON, "llamacpp": LLAMACPP,
}  # fmt: skip
