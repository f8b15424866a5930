#!/bin/sh
# What librdkafka's tests call Kafka's script for: --create, --alter and --delete of a topic.
#   kafka-topics.sh --bootstrap-server SERVERS --create --topic NAME [OPTIONS]
[ "$1" = --bootstrap-server ] && [ "$4" = --topic ] || exit 2
servers=$2 action=${3#--} name=$5
shift 5
exec "$PYTHON" -m quorumlog topic "$action" "$name" --bootstrap-server "$servers" "$@"
