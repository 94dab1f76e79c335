from taskguard.cli import main

main()
