# Two images from one file:
#   docker build --target service -t headway-service .
#   docker build --target agent -t headway-agent .
# The agent's image carries torch. For hosts without a GPU, pass the index of PyTorch's CPU builds in
# TORCH_PIP_ARGS (2 GB smaller); EXTRA_PACKAGES is what the users' scripts import besides. Without torch, for
# jobs that bring their own environment: --build-arg AGENT_EXTRAS=agent.
# BASE is any image of a Debian kind with `python`, `pip` and Python's venv module. The settings of pip that a
# mirror needs are a secret of the build, and in no image: --secret id=pip.conf,src=pip.conf, and
# --secret id=ca.pem,src=ca.pem with `cert = /run/secrets/ca.pem` in pip.conf for an authority of your own.

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 10001 headway \
    && useradd --uid 10001 --gid headway --home-dir /var/lib/headway --create-home --shell /usr/sbin/nologin headway \
    && install --directory --owner=headway --group=headway /srv/headway

FROM base AS build
ENV PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

FROM build AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY headway headway
COPY service service
COPY worker_agent worker_agent
COPY migrations migrations
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem \
    pip wheel --no-deps --wheel-dir /wheels .

# OR-Tools names pandas for a modeller that Headway does not use: with it, and with pip and the packages' own
# tests, the image would be 125 MB larger.
FROM build AS service-packages
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /wheels
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem \
    python -m venv /opt/headway \
    && wheel="$(echo /wheels/*.whl)" \
    && /opt/headway/bin/pip install -c /tmp/constraints.txt "${wheel}[service,ec2]" \
    && /opt/headway/bin/pip uninstall --quiet --yes pandas setuptools pip \
    && find /opt/headway/lib -type d -name tests -prune -exec rm -r {} +

FROM build AS agent-packages
ARG AGENT_EXTRAS="agent,train"
ARG TORCH_PIP_ARGS=""
ARG EXTRA_PACKAGES=""
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem \
    python -m venv /opt/headway \
    && case "${AGENT_EXTRAS}" in \
        *train*) /opt/headway/bin/pip install ${TORCH_PIP_ARGS} "$(grep '^torch==' /tmp/constraints.txt)" ;; \
    esac
COPY --from=wheel /wheels /wheels
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem \
    wheel="$(echo /wheels/*.whl)" \
    && /opt/headway/bin/pip install -c /tmp/constraints.txt "${wheel}[${AGENT_EXTRAS}]" ${EXTRA_PACKAGES}

FROM base AS service
COPY --from=service-packages /opt/headway /opt/headway
ENV PATH=/opt/headway/bin:$PATH HEADWAY_HOST=0.0.0.0 HEADWAY_PORT=8123
USER 10001:10001
WORKDIR /var/lib/headway
EXPOSE 8123
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8123/livez', timeout=4)"]
ENTRYPOINT ["python", "-m", "service"]
CMD ["all"]

FROM base AS agent
COPY --from=agent-packages /opt/headway /opt/headway
ENV PATH=/opt/headway/bin:$PATH
USER 10001:10001
WORKDIR /
# An agent holds this lock as long as it lives. Whether the service hears it, `headway nodes` says.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["sh", "-c", "! flock --nonblock /var/lib/headway/agent.lock true"]
ENTRYPOINT ["python", "-P", "-m", "worker_agent", "--state-dir", "/var/lib/headway"]
