"""The output folder of a job on this node: fetched before its ranks start, saved while they run and when they end.

keeper    part of the agent: schedules fetches and saves, and reports them
calling   starts the child process and reads its reply
child     process with the rights of the job's ranks, which runs the modules below
fetching  fetches one folder
saving    saves one folder
tree      files of a folder whose names and links the job chose
"""
