"""guidellm's load: chats and text completions, streamed, one after the other and four at once.

    python guidellm_load.py URL KEY MODEL

Prompts are made by a tokenizer of bytes that is written here, since none is fetched. `OUTPUT` tokens come of each
request: that is what `ignore_eos` is for, and what guidellm reads from the usage in each chunk.
"""

import json
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

url, key, model = sys.argv[1:]
PROMPT, OUTPUT, REQUESTS = 64, 24, 4
alphabet = {character: place for place, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained("tokenizer")

for form in ("/v1/chat/completions", "/v1/completions"):
    for profile in ("kind=synchronous", "kind=concurrent,streams=4"):
        report = Path("report.json")
        report.unlink(missing_ok=True)
        subprocess.run([
            str(Path(sys.executable).parent / "guidellm"), "run",
            "--backend", f"kind=openai_http,target={url},model={model},api_key={key},request_format={form}",
            "--tokenizer", "kind=huggingface_auto,model=tokenizer", "--profile", profile,
            "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
            "--constraint", f"kind=max_requests,count={REQUESTS}", "--output", f"kind=json,path={report}",
            "--disable-console-interactive"], check=True)
        [benchmark] = json.loads(report.read_text())["benchmarks"]
        requests = benchmark["requests"]
        assert not requests["errored"], requests["errored"][0]
        assert len(requests["successful"]) == REQUESTS, len(requests["successful"])
        tokens = {each["output_metrics"]["text_tokens"] for each in requests["successful"]}
        assert tokens == {OUTPUT}, tokens
