from benchmarks import job_generation, start_up

start_up.main()
job_generation.main()
