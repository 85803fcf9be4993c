from benchmarks import collecting, job_generation, report, sampling, start_up, training_speed

start_up.main()
job_generation.main()
collecting.main()
report.main([])
sampling.main()
training_speed.main()
