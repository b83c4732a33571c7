// Package okta stands in for the SDK of a service for second factors, the largest package of all and one that nothing
// here needs. It has what Vault's code names, and cannot be used.
package okta

import (
	"context"
	"errors"
)

type Configuration struct{ Context context.Context }

type ConfigSetter func()

func NewConfiguration(...ConfigSetter) (*Configuration, error) {
	return nil, errors.New("Okta was left out of this Vault")
}

func WithToken(string) ConfigSetter  { return nil }
func WithOrgUrl(string) ConfigSetter { return nil }
func WithCache(bool) ConfigSetter    { return nil }

type APIClient struct {
	UserAPI       users
	UserFactorAPI factors
}

func NewAPIClient(*Configuration) *APIClient { return nil }

func (*APIClient) GetConfig() *Configuration { return nil }

type User struct{}

func (User) GetId() string { return "" }

type UserFactorPush struct{ User }

type Factor struct{ UserFactorPush *UserFactorPush }

type Verification struct{ Links any }

func (Verification) GetFactorResult() string { return "" }

type Status struct {
	UserFactorPushTransaction         *User
	UserFactorPushTransactionRejected *User
	UserFactorPushTransactionTimeout  *User
	UserFactorPushTransactionWaiting  *User
}

type users struct{}

func (users) ListUsers(context.Context) request[[]User] { return request[[]User]{} }

type factors struct{}

func (factors) ListFactors(context.Context, string) request[[]Factor] { return request[[]Factor]{} }

func (factors) VerifyFactor(context.Context, string, string) request[Verification] {
	return request[Verification]{}
}

func (factors) GetFactorTransactionStatus(context.Context, string, string, string) request[Status] {
	return request[Status]{}
}

type request[Answer any] struct{}

func (r request[Answer]) Filter(string) request[Answer] { return r }

func (request[Answer]) Execute() (answer Answer, none any, err error) { return }
