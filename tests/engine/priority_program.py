"""Run by `test_priority`: prints the order in which the requests of a one-seat engine finish."""

import asyncio
import json
import sys

from config.catalogue import ModelEntry
from workers.engine import EngineRequest
from workers.vllm_engine import VllmEngine

URL = "/v1/completions"


async def main(models_folder: str) -> None:
    """One request holds the seat; of those that wait, the last is raised."""
    arguments = {"max_model_len": 512, "max_num_seqs": 1, "dtype": "float32"}
    entry = ModelEntry(source="builtin:tiny", engine_args=arguments)
    engine = VllmEngine("tiny", entry, models_folder)
    await engine.start()
    finished: list[str] = []

    async def run(name: str, output_tokens: int) -> None:
        body = {"model": "tiny", "prompt": name, "max_tokens": output_tokens, "ignore_eos": True}
        answer = await engine.run(EngineRequest(f"{name}-1-1", URL, json.dumps(body).encode(), 2))
        assert answer.status_code == 200, answer.body
        finished.append(name)

    tasks = [asyncio.create_task(run("holder", 400))]
    tasks += [asyncio.create_task(run(name, 4)) for name in ("first", "second", "raised")]
    while engine.figures().waiting_requests < 3:
        assert not tasks[0].done()
        await asyncio.sleep(0.005)
    await engine.set_priority("raised-1-1", 0)
    await engine.set_priority("not-there-1-1", 0)
    await asyncio.gather(*tasks)
    await engine.close()
    print(json.dumps(finished), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
