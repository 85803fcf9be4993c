from benchmarks import collecting, job_generation, report_opening, sampling, start_up, training_speed

start_up.main()
job_generation.main()
collecting.main()
report_opening.main()
sampling.main()
training_speed.main()
