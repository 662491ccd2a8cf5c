#!/bin/sh
# What a rented machine runs when it starts: its agent joins the cluster with a token of its own.
# Names in braces after a dollar are filled in for each machine; write a plain dollar twice.
# The image has Headway in /opt/headway, and deploy/systemd/headway-agent.service: see deploy/ec2/README.md.
set -eu
trap 'poweroff' EXIT # a machine that shuts down by itself is terminated: better none than an idle one
umask 077
mkdir -p /etc/headway
cat > /etc/headway/agent.env <<'END'
HEADWAY_URL=${url}
HEADWAY_JOIN_TOKEN=${token}
HEADWAY_METADATA=ec2
END
umask 022
mkdir -p /etc/systemd/system/headway-agent.service.d
cat > /etc/systemd/system/headway-agent.service.d/rented.conf <<'END'
[Unit]
# Refused for good: of no use here.
FailureAction=poweroff
[Service]
ExecStart=
ExecStart=/opt/headway/bin/python -P -m worker_agent --state-dir /var/lib/headway-agent \
    --name ${node} --slots ${slots} --device-kind ${device_kind}
END
systemctl daemon-reload
systemctl enable --now headway-agent
trap - EXIT
