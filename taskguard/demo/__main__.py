from taskguard.cli.demo import command

command(prog_name="taskguard demo")
