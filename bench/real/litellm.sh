#!/bin/sh
# The OpenAI family through a litellm proxy in front of the bundled server, beside the server itself.
#
#     python3 -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]'
#     LITELLM=/tmp/litellm/bin/litellm bench/real/litellm.sh
#
# litellm makes responses of chats for a provider that has none of its own, which is how it is asked for them here.
set -eu
litellm=${LITELLM:-litellm}
port=${PORT:-48123}
folder=$(mktemp -d)
started=
trap 'kill $started; rm -rf "$folder"' EXIT

loadtest serve --model tiny --provider cpu --port 0 >"$folder/server" 2>&1 &
started=$!
until url=$(grep -o 'http://[^ ]*' "$folder/server"); do sleep 0.5; done
cat >"$folder/proxy.yaml" <<END
model_list:
  - model_name: tiny
    litellm_params: {model: openai/tiny, api_base: $url/v1, api_key: none}
  - model_name: tiny-responses
    litellm_params: {model: deepseek/tiny, api_base: $url/v1, api_key: none}
general_settings: {master_key: sk-proxy-0123456789}
END
LITELLM_LOCAL_MODEL_COST_MAP=True "$litellm" --config "$folder/proxy.yaml" --host 127.0.0.1 --port "$port" \
    >"$folder/proxy" 2>&1 &
started="$started $!"
proxy=http://127.0.0.1:$port

play() {
    name=$1
    shift
    echo "== $name"
    loadtest run "$@" -c 4 -n 100 --input-tokens 32 --output-tokens 16 -o "$folder/$name"
}
play direct-chat "$url" --endpoint chat
play proxy-chat "$proxy" --endpoint chat --model tiny --api-key sk-proxy-0123456789 --wait-ready 120s
play proxy-completions "$proxy" --endpoint completions --model tiny --api-key sk-proxy-0123456789
play proxy-responses "$proxy" --endpoint responses --model tiny-responses --api-key sk-proxy-0123456789
