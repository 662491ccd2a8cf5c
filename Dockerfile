# Two images from one file:
#   docker build --target service -t headway-service .
#   docker build --target agent -t headway-agent .
# The agent's image carries torch. For hosts without a GPU, pass the index of PyTorch's CPU builds in
# TORCH_PIP_ARGS (2 GB smaller); EXTRA_PACKAGES is what the users' scripts import besides.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 10001 headway \
    && useradd --uid 10001 --gid headway --home-dir /var/lib/headway --create-home --shell /usr/sbin/nologin headway \
    && install --directory --owner=headway --group=headway /srv/headway

FROM base AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY headway headway
COPY service service
COPY worker_agent worker_agent
COPY migrations migrations
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM base AS service-packages
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/headway \
    && wheel="$(echo /wheels/*.whl)" \
    && /opt/headway/bin/pip install --no-cache-dir -c /tmp/constraints.txt "${wheel}[service,ec2]"

FROM base AS agent-packages
ARG TORCH_PIP_ARGS=""
ARG EXTRA_PACKAGES=""
COPY constraints.txt /tmp/constraints.txt
RUN python -m venv /opt/headway \
    && /opt/headway/bin/pip install --no-cache-dir ${TORCH_PIP_ARGS} "$(grep '^torch==' /tmp/constraints.txt)"
COPY --from=wheel /wheels /wheels
RUN wheel="$(echo /wheels/*.whl)" \
    && /opt/headway/bin/pip install --no-cache-dir -c /tmp/constraints.txt "${wheel}[agent,train]" ${EXTRA_PACKAGES}

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
