"""Starts processes for the stand-ins of launchers."""
import os, socket, subprocess


def start(command, environments):
    """The highest exit status of a process per environment, added to this one."""
    running = [subprocess.Popen(command, env=os.environ | {k: str(v) for k, v in each.items()}) for each in environments]
    return max(abs(each.wait()) for each in running)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
