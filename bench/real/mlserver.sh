#!/bin/sh
# Tensors by the Open Inference Protocol, through MLServer: a model that sums its rows, in batches of 1, 8 and 32.
#
#     python3 -m venv /tmp/mlserver && /tmp/mlserver/bin/pip install mlserver
#     MLSERVER=/tmp/mlserver/bin/mlserver bench/real/mlserver.sh
#
# MLServer 1.7 names no extension of tensors as bytes, and so it is sent JSON.
set -eu
mlserver=${MLSERVER:-mlserver}
port=${PORT:-48124}
folder=$(mktemp -d)
started=
trap 'kill $started; rm -rf "$folder"' EXIT

cat >"$folder/summing.py" <<'END'
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Summing(MLModel):
    async def predict(self, payload):
        values = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("sum", values.sum(axis=1))])
END
cat >"$folder/model-settings.json" <<'END'
{"name": "summing", "implementation": "summing.Summing",
 "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}],
 "outputs": [{"name": "sum", "datatype": "FP32", "shape": [-1]}]}
END
cat >"$folder/settings.json" <<END
{"host": "127.0.0.1", "http_port": $port, "grpc_port": $((port + 1)), "metrics_port": $((port + 2)), "parallel_workers": 0}
END
PYTHONPATH=$folder "$mlserver" start "$folder" >"$folder/log" 2>&1 &
started=$!

loadtest run "http://127.0.0.1:$port/v2/models/summing/infer" --wait-ready 60s \
    --batch-size 1,8,32 -c 1,4 -d 10s -o "$folder/result"
