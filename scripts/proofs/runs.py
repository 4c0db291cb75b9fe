"""Parts shared by the proofs that make runs: making a run, and reading its directory."""
import collections, json, os, pathlib, shutil, subprocess, sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RELEASE = REPOSITORY / "target/release/rolldrop"
PYTHON = REPOSITORY / "target/test-venv/bin/python"
# Maximum number of attempts for a run that is invalid because the machine was too busy.
ATTEMPTS = 3
# Exit status of a run that measured nothing.
NOTHING_MEASURED = 2
# HAProxy's httplog with the server's address before what clients choose.
HAPROXY_FORMAT = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc %ac/%fc/%bc/%sc/%rc %sq/%bq %si:%sp %hr %hs %{+Q}r"
# Lets pods of the namespace `default` that name no service account do everything.
TRUST_DEFAULT_ACCOUNT = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "trust-default-account"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
}


def duckdb():
    """Returns DuckDB. If this Python lacks it, restarts the program with the Python that scripts/test installs."""
    try:
        import duckdb
    except ImportError:
        if pathlib.Path(sys.executable) == PYTHON or not PYTHON.exists():
            sys.exit("DuckDB is missing: scripts/test installs it")
        os.execv(PYTHON, [PYTHON, *sys.argv])
    return duckdb


def run(binary, scenario, out, *more):
    """Runs a scenario into the directory, and returns the finished process."""
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [str(part) for part in (binary, "run", scenario, "--quiet", "--out", out, *more)]
    return subprocess.run(command, capture_output=True, text=True)


def run_until_valid(binary, scenario, out, *more):
    """Does the same, and repeats an invalid run; also returns the number of attempts."""
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(out, ignore_errors=True)
        done = run(binary, scenario, out, *more)
        if done.returncode == NOTHING_MEASURED or is_valid(out):
            break
    return done, attempt


def three_pods(container, **pod):
    """Returns manifests of three pods with this container, which knows its pod's name and address, behind a Service `web`."""
    return [deployment("web", 3, {"app": "web"}, container, **pod), service("web", 8080)]


def deployment(name, replicas, labels, container, **pod):
    """Returns a Deployment of pods with a container that knows its pod's name and address."""
    variables = {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}
    env = [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in variables.items()]
    container = {"name": "app", "ports": [{"name": "http", "containerPort": 8080}]} | container
    container["env"] = env + container.get("env", [])
    template = {"metadata": {"labels": labels}, "spec": {**pod, "containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"inline": {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}}


def service(app, port):
    """Returns a Service named after the label `app` of the pods behind it."""
    spec = {"selector": {"app": app}, "ports": [{"name": "http", "port": port, "targetPort": "http"}]}
    return {"inline": {"apiVersion": "v1", "kind": "Service", "metadata": {"name": app}, "spec": spec}}


def use_kubectl():
    """Puts the kubectl that scripts/test installs on the PATH, for scenarios that call it."""
    os.environ["PATH"] = f"{PYTHON.parent}:{os.environ['PATH']}"


def kubectl(*arguments, **more):
    """Calls kubectl, and returns its output."""
    return subprocess.run(["kubectl", *map(str, arguments)], check=True, capture_output=True, text=True, **more).stdout


def result(run):
    return json.loads((run / "result.json").read_text())


def is_valid(run):
    """Returns True if the run is complete and its own verdict is valid."""
    return (run / "result.json").exists() and result(run)["verdict"]["state"] == "valid"


# Times in Unix seconds.
Stopped = collections.namedtuple("Stopped", "before after")


def stopped_routing(run):
    """Returns for each pod the times just before and after the swap that removed it from the Service proxy's table."""
    routed, stopped = collections.defaultdict(set), {}
    for line in (run / "cluster/service-proxy.jsonl").read_text().splitlines():
        sync = json.loads(line)
        if sync["kind"] == "sync":
            now = {endpoint["pod"] for endpoint in sync["endpoints"]}
            for pod in routed[sync["service"]] - now:
                stopped[pod] = Stopped(sync["swap_begin_ns"] / 1e9, sync["t_ns"] / 1e9)
            routed[sync["service"]] = now
    return stopped


def zero_s(run):
    """Returns the time at which the counted part of the load began, in Unix seconds."""
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "load_started":
            return event["t_ns"] / 1e9 + event["warmup_s"]
