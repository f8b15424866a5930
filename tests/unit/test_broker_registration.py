"""A node registers as a broker, once and again when its place has changed."""

from quorumlog.broker.registration import REGISTER_MS, RETRY_MS, Registration
from quorumlog.machine.cluster.commands import Registered
from quorumlog.machine.cluster.state import BrokerRecord, ClusterView
from quorumlog.model.codes import ResponseCode


class Registrar:
    def __init__(self):
        self.time_ms, self.leads, self.brokers, self.orders = 0, "n1", {}, []
        self.address, self.advertised = "h:7101", "h:9092"
        self.registration = Registration(
            "n0", "east", self, lambda: self.address, lambda: self.advertised
        )

    def now_ms(self):
        return self.time_ms

    def view(self):
        return ClusterView(brokers=self.brokers)

    def leader(self):
        return self.leads

    def order(self, command, timeout_ms, done):
        self.orders.append((command, done))

    def tick(self, by_ms=0):
        self.time_ms += by_ms
        self.registration.tick()
        return len(self.orders)

    def carry_out(self, code=ResponseCode.SUCCESS):
        command, done = self.orders.pop()
        place = command.node_id, command.address, command.host, command.port, command.rack
        if code is ResponseCode.SUCCESS:
            self.brokers = {0: BrokerRecord(0, *place)}
        done(ResponseCode.SUCCESS, "", Registered(0, "c", code, "why not"))


def test_a_broker_registers_once_and_again_at_another_address():
    case = Registrar()
    assert [case.tick(), case.tick()] == [1, 1]
    assert len(case.orders[0][0].cluster_id) == 22
    case.carry_out()
    assert case.tick(RETRY_MS) == 0
    case.advertised = "other:9092"
    assert case.tick() == 1
    case.carry_out()
    assert case.brokers[0].host == "other"
    case.address = "h:7999"
    assert case.tick(RETRY_MS) == 1


def test_it_waits_for_a_leader_and_for_its_own_address():
    case = Registrar()
    case.leads = None
    assert case.tick() == 0
    case.leads, case.advertised = "n1", ""
    assert case.tick() == 0
    case.advertised = "h:1"
    assert case.tick() == 1


def test_an_attempt_that_failed_is_repeated_after_a_pause(caplog):
    case = Registrar()
    case.tick()
    case.orders.pop()[1](ResponseCode.TIMEOUT, "", None)
    assert case.tick() == 0
    assert case.tick(RETRY_MS) == 1
    case.carry_out(ResponseCode.CLUSTER_FULL)
    assert "broker not registered" in caplog.text
    assert case.registration.refusal == "why not"
    assert case.tick(RETRY_MS) == 0
    assert case.tick(REGISTER_MS) == 1
    case.carry_out(ResponseCode.CLUSTER_FULL)
    assert caplog.text.count("broker not registered") == 1, "it is said once"
    case.tick(RETRY_MS + REGISTER_MS)
    case.carry_out()
    assert case.registration.refusal == ""
