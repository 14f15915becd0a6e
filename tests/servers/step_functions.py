"""Step Functions without an account: moto's interpreter runs definitions, its waits are recorded.

`with emulator() as machine: machine.run(definition, input, functions)` runs one execution to its end. The
functions are Python ones, by the name in the definition; what they raise is reported as Lambda's runtime for
Python reports it, by the name of the class. `machine.slept` has the seconds of all waits, none of which is
waited for; `entered` has every state with its input, as the execution's own history has it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Functions = dict[str, Callable[[Any], Any]]

PATIENCE_S = 30.0
PARSER = "moto.stepfunctions.parser.asl.component"
ROLE = "arn:aws:iam::123456789012:role/any"


class Ended(NamedTuple):
    """How an execution ended."""

    status: str
    output: Any
    error: str
    entered: list[tuple[str, Any]]

    @property
    def states(self) -> list[str]:
        return [name for name, _ in self.entered]


class Machine:
    """The emulator; `slept` is how long it was told to wait, `called` which functions it called, in order."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.called: list[str] = []
        self.now = 0
        self.most_at_once = 0
        self.functions: Functions = {}
        self._client: Any = None
        self._count = 0
        self._made: dict[str, str] = {}

    def invoke(self, parameters: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Call a function as Lambda does."""
        name = parameters["FunctionName"]
        self.called.append(name)
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            value = self.functions[name](json.loads(parameters["Payload"]))
        except Exception as error:
            told = {"errorType": type(error).__name__, "errorMessage": str(error)}
            return {"FunctionError": "Unhandled", "Payload": told, "StatusCode": 200}
        finally:
            self.now -= 1
        return {"Payload": json.loads(json.dumps(value)), "StatusCode": 200}

    def run(self, definition: dict[str, Any], given: Any, functions: Functions) -> Ended:
        """Run one execution to its end."""
        import boto3

        self.functions = functions
        self._client = self._client or boto3.client("stepfunctions", region_name="us-east-1")
        client, text = self._client, json.dumps(definition)
        if text not in self._made:
            name = f"machine-{len(self._made)}"
            made = client.create_state_machine(name=name, definition=text, roleArn=ROLE)
            self._made[text] = made["stateMachineArn"]
        self._count += 1
        began = client.start_execution(
            stateMachineArn=self._made[text], name=f"run-{self._count}", input=json.dumps(given)
        )
        arn, until = began["executionArn"], time.monotonic() + PATIENCE_S
        while (found := client.describe_execution(executionArn=arn))["status"] == "RUNNING":
            assert time.monotonic() < until, f"it is still running after {PATIENCE_S} s"
            REAL_SLEEP(0.005)
        events = client.get_execution_history(executionArn=arn, maxResults=1000)["events"]
        output = json.loads(found["output"]) if found.get("output") else None
        return Ended(found["status"], output, found.get("error", ""), list(_entered(events)))


REAL_SLEEP = time.sleep


def _entered(events: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for event in events:
        told = event.get("stateEnteredEventDetails")
        if told:
            yield told["name"], json.loads(told["input"])


def _parsed_once() -> Callable[[str], Any]:
    """Return moto's parser, which reads each text once: that is nearly all that an execution costs."""
    from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser, Preprocessor

    real, trees = AmazonStateLanguageParser.parse, {}

    def parse(definition: str) -> Any:
        if definition not in trees:
            program, trees[definition] = real(definition)
            return program, trees[definition]
        return Preprocessor().visit(trees[definition]), trees[definition]

    return parse


@contextmanager
def emulator() -> Iterator[Machine]:
    """Run moto with its interpreter; functions and waits are ours."""
    from moto import mock_aws

    machine, fake = Machine(), {f"AWS_{name}": "testing" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")}
    where = f"{PARSER}.state.exec.state_task.lambda_eval_utils._invoke_lambda_function"
    with (
        mock.patch.dict(os.environ, fake),
        mock_aws(config={"stepfunctions": {"execute_state_machine": True}}),
        mock.patch(where, machine.invoke),
        mock.patch(f"{PARSER[:-10]}.parse.asl_parser.AmazonStateLanguageParser.parse", _parsed_once()),
        mock.patch(f"{PARSER}.common.retry.retrier_decl.time.sleep", machine.slept.append),
        mock.patch(
            f"{PARSER}.state.wait.wait_function.wait_function.WaitFunction._wait_interval",
            lambda self, env, wait_seconds: machine.slept.append(wait_seconds),
        ),
    ):
        yield machine
