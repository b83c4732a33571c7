package k8s

type Provider struct{}
