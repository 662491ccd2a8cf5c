#!/bin/sh
# User data of a machine of EC2 that you start yourself, by hand or by an Auto Scaling group: its agent joins the cluster.
# (What Headway rents gets a script of its own.) The image is that of README.md. Fill in the two values; the join token must be
# good for as many machines as start with it: headway join-token create --uses 20
set -eu

url=https://headway.example.org
token=JOIN-TOKEN

umask 077
mkdir -p /etc/headway
cat > /etc/headway/agent.env <<END
HEADWAY_URL=$url
HEADWAY_JOIN_TOKEN=$token
HEADWAY_METADATA=ec2
END

# Called like its instance: two machines of one group never have the same name. Every GPU is a slot, else every core.
metadata=http://169.254.169.254/latest
session=$(curl --silent --fail --max-time 5 --retry 5 --request PUT \
    --header 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/api/token")
instance=$(curl --silent --fail --max-time 5 --retry 5 \
    --header "X-aws-ec2-metadata-token: $session" "$metadata/meta-data/instance-id")
umask 022
mkdir -p /etc/systemd/system/headway-agent.service.d
cat > /etc/systemd/system/headway-agent.service.d/name.conf <<END
[Service]
ExecStart=
ExecStart=/opt/headway/bin/python -P -m worker_agent --state-dir /var/lib/headway-agent --name $instance
END
systemctl daemon-reload
systemctl enable --now headway-agent
