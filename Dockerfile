# Image of profiles/kubernetes, and of a study in one container: docs/cluster-kubernetes.md, docs/engine-in-container.md.
#
#   docker build --build-arg ENGINE=cuda --tag registry.example/pdkv:0.1.0 .      (or ENGINE=cpu)
#
# Everything comes from the locks in envs/. /opt/pdkv is a clone with its environments; a study names the engine by
# engine: {python: /opt/pdkv/.engine/ENGINE/bin/python, device: ENGINE}.
ARG PYTHON=3.12

# ---- pipeline: Snakemake, its Kubernetes executor, pdkv ----
FROM docker.io/library/python:${PYTHON}-slim-bookworm AS pipeline
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /opt/pdkv
COPY envs envs
RUN python -m venv .venv \
 && .venv/bin/pip install --no-deps --requirement envs/kubernetes.txt \
 && .venv/bin/pip download --no-deps --constraint envs/kubernetes.txt --dest wheels snakemake-storage-plugin-s3
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN .venv/bin/pip install --no-deps --editable .

# ---- engine: vLLM in an environment of its own ----
FROM pipeline AS engine
ARG ENGINE=cuda
RUN .venv/bin/pdkv install-engine "${ENGINE}"

# ---- what runs ----
FROM docker.io/library/python:${PYTHON}-slim-bookworm
# git: Snakemake packs for a pod what git knows of. gcc: Triton compiles its launchers when an engine starts.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc git libc6-dev libnuma1 procps tmux \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --create-home pdkv \
 && install --directory --owner pdkv /workdir /work
COPY --from=engine /opt/pdkv /opt/pdkv
# In a pod Snakemake asks pip for its storage plugin: it gets the one of the lock, without a network.
# A clone in the working directory, as Snakemake puts it into a pod, goes before the one in the image.
ENV PATH=/opt/pdkv/.venv/bin:$PATH \
    PYTHONPATH=src \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1 PIP_NO_DEPS=1 PIP_FIND_LINKS=/opt/pdkv/wheels
USER 1000
WORKDIR /workdir
CMD ["pdkv", "--help"]
