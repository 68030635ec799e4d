# One image for every Pod of an experiment. `steppe image build` fills in the arguments; by hand:
#
#   docker build -t steppe:0.1.0 .                      for CPUs
#   docker build -t steppe:0.1.0-gpu --target gpu .     for NVIDIA GPUs
#
# Any Debian or Ubuntu with Python 3.11 or newer and its venv module can be the base, a simulator's own image too. For a base that
# never changes under its name, name it with its digest: --build-arg BASE=python:3.11.14-slim-bookworm@sha256:...
ARG BASE=python:3.11.14-slim-bookworm


# The packages without the source, so that a change of the source neither fetches nor pushes them again.
FROM ${BASE} AS packages
ARG EXTRAS=cluster,onnx
ARG PACKAGES=""
ENV PATH=/opt/steppe/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
RUN python3 -m venv /opt/steppe && pip install pip==25.2 setuptools==82.0.1
COPY pyproject.toml requirements.lock ./
RUN mkdir -p src/steppe && touch src/steppe/__init__.py README.md LICENSE Dockerfile .dockerignore \
    && pip install --constraint requirements.lock --no-build-isolation ".[${EXTRAS}]" ${PACKAGES} \
    && pip uninstall --yes steppe \
    && find /opt/steppe -type d -name tests -prune -exec rm -r {} +


FROM packages AS packages-gpu
# The wheels bring CUDA along: a node only needs NVIDIA's driver. 12 runs on more of them than 13. Versions: pip install --dry-run.
RUN pip install --constraint requirements.lock "jax[cuda12]" \
    nvidia-cublas-cu12==12.9.3.13 nvidia-cuda-cccl-cu12==12.9.27 nvidia-cuda-cupti-cu12==12.9.79 \
    nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79 \
    nvidia-cudnn-cu12==9.27.0.42 nvidia-cufft-cu12==11.4.1.4 nvidia-cusolver-cu12==11.7.5.82 \
    nvidia-cusparse-cu12==12.5.10.65 nvidia-nccl-cu12==2.32.3 nvidia-nvjitlink-cu12==12.9.86 nvidia-nvshmem-cu12==3.8.0


FROM packages AS source
COPY README.md LICENSE Dockerfile .dockerignore ./
COPY src src
# Without what was built of the empty package above: its files are newer than the copied ones, and would stay.
RUN rm -r build && pip install --no-build-isolation --no-deps --prefix /installed .


FROM ${BASE} AS runtime
LABEL org.opencontainers.image.title="Steppe" org.opencontainers.image.licenses="Apache-2.0"
# Kubernetes tells that a user is not root by its number only.
RUN { getent passwd 1000 > /dev/null || useradd --uid 1000 --home-dir /home/steppe --shell /bin/sh steppe; } \
    && mkdir -p /home/steppe && chown 1000:1000 /home/steppe
ENV PATH=/opt/steppe/bin:$PATH HOME=/home/steppe PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /home/steppe
ENTRYPOINT ["steppe"]
CMD ["--help"]


FROM runtime AS gpu
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages-gpu /opt/steppe /opt/steppe
COPY --from=source /installed /opt/steppe


# The last one is what is built where no target is named.
FROM runtime AS cpu
COPY --from=packages /opt/steppe /opt/steppe
COPY --from=source /installed /opt/steppe
