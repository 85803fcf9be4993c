from benchmarks import job_generation, start_up, training_speed

start_up.main()
job_generation.main()
training_speed.main()
