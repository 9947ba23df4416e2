"""The image's root file system as a container: the same files serve the demo model in half a gigabyte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.imaging.packages.downloads import Downloads, default_folder
from appliance.imaging.papers import container
from appliance.imaging.recipe import recipe
from appliance.kernels.runtime import ahead
from tests.support import images, waiting
from tests.support.docker_daemon import docker_daemon
from tests.support.require import absent

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # no second container from a registry

LIMIT = 512 << 20
SITE = "/usr/lib/python3/dist-packages"
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 4,
            "temperature": 0}
# There is no other program in the image to ask with.
ASK = """
import http.client, sys
ask = http.client.HTTPConnection("127.0.0.1", 8080, timeout=600)
ask.request("POST", "/v1/chat/completions", sys.argv[1], {
    "content-type": "application/json", "authorization": "Bearer sk-appliance-demo"})
print(ask.getresponse().read().decode())
"""


@pytest.mark.guests
@pytest.mark.timeout(600)
def test_serves_the_demo_model_in_512_mb(image: Path, tmp_path: Path) -> None:
    """Imported, started read-only without a network, rights or swap: it answers, and nobody was killed."""
    if not images.MODELS.is_dir():
        absent("the demo model: make demo")
    archive = tmp_path / "root.tar"
    container.export(image, archive, recipe.load(), Downloads(default_folder() / "downloads"))
    with docker_daemon():
        import docker
        from testcontainers.core.container import DockerContainer

        client = docker.from_env()
        with archive.open("rb") as file:
            client.api.import_image_from_data(file.read(), repository="appliance-test-image", tag="latest")
        running = DockerContainer("appliance-test-image:latest").with_command(list(container.COMMAND)).with_kwargs(
            network_mode="none", read_only=True, cap_drop=["ALL"], mem_limit=LIMIT, memswap_limit=LIMIT
        ).with_volume_mapping(str(images.MODELS), "/models", "ro")
        # The test's image has kernels for emulated guests only; this machine's own are in the checkout.
        running = running.with_volume_mapping(str(ahead.PREBUILT), f"{SITE}/appliance/kernels/prebuilt", "ro")
        with running:
            wrapped = running.get_wrapped_container()

            def serves() -> bool:
                wrapped.reload()
                assert wrapped.status in ("created", "running"), wrapped.logs().decode()
                return b"ready on" in wrapped.logs()

            waiting.until(serves, "container that serves", wrapped.logs)
            code, said = wrapped.exec_run([*container.COMMAND[:2], "-c", ASK, json.dumps(QUESTION)])
            assert code == 0, said.decode() + wrapped.logs().decode()
            assert json.loads(said)["choices"][0]["message"]["content"] == "1. The River"
            wrapped.reload()
            assert not wrapped.attrs["State"]["OOMKilled"]
            assert wrapped.attrs["HostConfig"]["Memory"] == LIMIT
