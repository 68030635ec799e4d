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
RUN python3 -m venv /opt/steppe
COPY pyproject.toml requirements.lock locked_requirements.py ./
# Every package has its hash in the lock, pip and what builds Steppe too; pip refuses anything else. Packages of one's own get the
# lock's versions where it has them.
RUN python3 locked_requirements.py build > build.txt && pip install --require-hashes --requirement build.txt \
    && python3 locked_requirements.py "${EXTRAS}" > wanted.txt \
    && pip install --require-hashes --no-build-isolation --requirement wanted.txt \
    && python3 locked_requirements.py --versions > versions.txt \
    && if [ -n "${PACKAGES}" ]; then pip install --constraint versions.txt ${PACKAGES}; fi \
    && find /opt/steppe -type d -name tests -prune -exec rm -r {} +


FROM packages AS packages-gpu
COPY requirements-gpu.lock ./
RUN pip install --require-hashes --requirement requirements-gpu.lock


FROM packages AS source
COPY README.md LICENSE Dockerfile .dockerignore requirements-gpu.lock ./
COPY src src
RUN pip install --no-build-isolation --no-deps --prefix /installed .


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
